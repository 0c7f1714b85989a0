"""Arguments and flags that several commands share, with their help.

A command that asks a judge takes all of the judge's flags as one value:

    @takes_judge()
    def judge(file: File, flags: JudgeFlags, limit: Limit = 0) -> int: ...

The command line then has one flag for each field of `JudgeFlags`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

import typer

from burnish.cli.completion import complete_models, complete_runs, complete_words
from burnish.records import MediaPart

RUNS = Path("runs")


def read_attached(files: list[Path] | None) -> tuple[MediaPart, ...]:
    """The images and sounds of `--attach`, stored for this machine's models."""
    from burnish.tasks.media_columns import CheckedBlobs

    return tuple(CheckedBlobs().add_file(file) for file in files or ())


Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RECIPE KEY=VALUE",
        help="A .toml file or the name of a shipped recipe, then settings to change.",
        show_default=False,
        autocompletion=complete_words,
    ),
]
RunsFolder = Annotated[
    Path, typer.Option("--runs", metavar="FOLDER", help="Where runs live.", show_default=True)
]
ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="smollm2, tiny, a model's or a run's folder, or http://host:port/v1#model.",
        show_default=False,
        autocompletion=complete_models,
    ),
]
LocalModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="smollm2, tiny, or a model's or a run's folder; a server does not give its weights.",
        show_default=False,
        autocompletion=complete_models,
    ),
]
ApiKeyEnv = Annotated[
    str,
    typer.Option(
        "--api-key-env", metavar="NAME", help="Environment variable with the server's key."
    ),
]
System = Annotated[str, typer.Option("--system", metavar="TEXT", help="A system message.")]
Attached = Annotated[
    list[Path] | None,
    typer.Option(
        "--attach",
        metavar="FILE",
        help="An image or a sound in front of the prompt, for a model that reads it; may be repeated.",
        show_default=False,
    ),
]
Temperature = Annotated[float, typer.Option("--temperature", min=0.0, help="0 is greedy.")]
TopP = Annotated[float, typer.Option("--top-p", min=0.0, max=1.0)]
MaxTokens = Annotated[int, typer.Option("--max-tokens", min=1, help="Most tokens of one answer.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="The same seed, the same answers.")]
DecodingWords = Annotated[
    str,
    typer.Option(
        "--decoding",
        metavar="KEY=VALUE,...",
        help="How a diffusion model writes: block, steps, order (confidence, entropy, margin, "
        "random), canvas.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON for machines instead of text.")]
RunName = Annotated[
    str,
    typer.Argument(
        metavar="[RUN]",
        help="A run's name, the beginning of it, or its folder; the newest when left out.",
        show_default=False,
        autocompletion=complete_runs,
    ),
]
File = Annotated[
    Path, typer.Argument(metavar="FILE", help="JSONL, JSON, CSV or Parquet.", show_default=False)
]
Limit = Annotated[int, typer.Option("--limit", min=0, metavar="N", help="At most N; 0 for all.")]
Oracle = Annotated[
    bool,
    typer.Option(
        "--oracle", help="Let the judge use hidden columns (the reference); this is counted."
    ),
]


class JudgeFlags(NamedTuple):
    """The flags that describe a judge."""

    with_: Annotated[
        str,
        typer.Option(
            "--with",
            metavar="NAME",
            help="direct, point, list, openrs, ...; an unknown name lists them all.",
        ),
    ] = "direct"
    model: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="smollm2, a model folder, or http://host:port/v1#model; tiny reads too little.",
        ),
    ] = ""
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", metavar="KEY=VALUE", help="A setting of the judge; may be repeated."
        ),
    ] = None
    both_orders: Annotated[
        bool,
        typer.Option("--both-orders/--one-order", help="Ask about pairs in both orders."),
    ] = True
    rule: Annotated[
        Literal["mean", "votes", "strict", "abstain"] | None,
        typer.Option(
            "--rule",
            help="How two orders become one verdict; abstain: none where they disagree.",
        ),
    ] = None
    anchor: Annotated[
        str,
        typer.Option(
            "--anchor", metavar="COLUMN", help="Compare each response with this column's text."
        ),
    ] = ""
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens", min=1, help="Most tokens of one reply; 1024, or what it needs."
        ),
    ] = None
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="0 is greedy.")] = 0.0
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, help="Items, and requests, at the same time.")
    ] = 16
    rpm: Annotated[
        float | None, typer.Option("--rpm", min=1, help="Most requests a minute to the server.")
    ] = None
    tpm: Annotated[
        float | None, typer.Option("--tpm", min=1, help="Most tokens a minute to the server.")
    ] = None
    retries: Annotated[
        int, typer.Option("--retries", min=0, help="Further requests where the server fails.")
    ] = 4
    hedge_after: Annotated[
        float | None,
        typer.Option(
            "--hedge-after", min=0.001, metavar="SECONDS", help="Send a slow request once more."
        ),
    ] = None
    structured: Annotated[
        Literal["auto", "on", "off"],
        typer.Option("--structured", help="Let the server force the verdict's JSON form."),
    ] = "auto"
    media: Annotated[
        Literal["send", "mark"],
        typer.Option("--media", help="Send images and sounds, or marks that stand for them."),
    ] = "send"
    media_count: Annotated[
        int, typer.Option("--media-count", min=0, help="Most images and sounds in one request.")
    ] = 16
    media_mb: Annotated[
        float, typer.Option("--media-mb", min=0.0, help="Most megabytes of them in one request.")
    ] = 20.0
    api_key_env: ApiKeyEnv = ""
    prices: Annotated[
        str,
        typer.Option(
            "--prices", metavar="IN,OUT", help="Dollars for a million tokens read and written."
        ),
    ] = ""
    budget_calls: Annotated[
        int | None, typer.Option("--budget-calls", min=0, help="Most calls.")
    ] = None
    budget_tokens: Annotated[
        int | None, typer.Option("--budget-tokens", min=0, help="Most tokens.")
    ] = None
    budget_usd: Annotated[
        float | None, typer.Option("--budget-usd", min=0.0, help="Most dollars.")
    ] = None
    cache: Annotated[
        Path | None,
        typer.Option(
            "--cache", metavar="FILE", help="Keep replies here; equal questions cost once."
        ),
    ] = None
    record: Annotated[
        Path | None,
        typer.Option("--record", metavar="FILE", help="Write every question and raw reply here."),
    ] = None
    replay: Annotated[
        Path | None,
        typer.Option("--replay", metavar="FILE", help="Answer from such a record, without a call."),
    ] = None


def takes_judge(
    without: Collection[str] = (), **fixed: Any
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command one flag for each field of `JudgeFlags` in place of its argument `flags`.

    Fields named in `without` have no flag there; `fixed` are other defaults than usual.
    """

    def around(command: Callable[..., int]) -> Callable[..., int]:
        kinds = get_type_hints(JudgeFlags, include_extras=True)
        usual = {**JudgeFlags._field_defaults, **fixed}
        names = [name for name in JudgeFlags._fields if name not in without]
        shared = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=usual[name], annotation=kinds[name]
            )
            for name in names
        ]

        @wraps(command)
        def typed(**given: Any) -> int:
            flags = JudgeFlags(**(usual | {name: given.pop(name) for name in names}))
            return command(flags=flags, **given)

        own = inspect.signature(command, eval_str=True)
        parts = [
            part.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for written in own.parameters.values()
            for part in (shared if written.name == "flags" else [written])
        ]
        vars(typed)["__signature__"] = own.replace(parameters=parts)
        typed.__annotations__ = {part.name: part.annotation for part in parts}
        return typed

    return around
