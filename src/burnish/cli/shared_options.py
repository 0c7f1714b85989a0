"""Arguments and flags that several commands share, with their help.

@takes(JudgeFlags)          # one flag for each field of the record
def judge(file: File, flags: JudgeFlags, limit: Limit = 0) -> int: ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

from typer import Argument, Option

from burnish.cli.completion import complete_models, complete_runs, complete_words
from burnish.records import MediaPart

RUNS = Path("runs")


def read_attached(files: list[Path] | None) -> tuple[MediaPart, ...]:
    """The images and sounds of `--attach`, stored for this machine's models."""
    from burnish.tasks.media_columns import CheckedBlobs

    return tuple(CheckedBlobs().add_file(file) for file in files or ())


Words = Annotated[
    list[str] | None,
    Argument(
        metavar="RECIPE KEY=VALUE",
        help="A .toml file or the name of a shipped recipe, then settings to change.",
        autocompletion=complete_words,
    ),
]
RunsFolder = Annotated[Path, Option("--runs", metavar="FOLDER", help="Where runs live.")]
ModelName = Annotated[
    str,
    Argument(
        metavar="MODEL",
        help="smollm2, tiny, a model's or a run's folder, or http://host:port/v1#model.",
        autocompletion=complete_models,
    ),
]
LocalModelName = Annotated[
    str,
    Argument(
        metavar="MODEL",
        help="smollm2, tiny, or a model's or a run's folder; a server does not give its weights.",
        autocompletion=complete_models,
    ),
]
ApiKeyEnv = Annotated[
    str, Option(metavar="NAME", help="Environment variable with the server's key.")
]
System = Annotated[str, Option(metavar="TEXT", help="A system message.")]
Attached = Annotated[
    list[Path] | None,
    Option(
        metavar="FILE",
        help="An image or a sound in front of the prompt, for a model that reads it; may be repeated.",
    ),
]
Temperature = Annotated[float, Option(min=0.0, help="0 is greedy.")]
TopP = Annotated[float, Option(min=0.0, max=1.0)]
MaxTokens = Annotated[int, Option(min=1, help="Most tokens of one answer.")]
Seed = Annotated[int, Option(min=0, help="The same seed, the same answers.")]
DecodingWords = Annotated[
    str,
    Option(
        metavar="KEY=VALUE,...",
        help="How a diffusion model writes: block, steps, order (confidence, entropy, margin, "
        "random), canvas.",
    ),
]
AsJson = Annotated[bool, Option("--json", help="JSON for machines instead of text.")]
RunName = Annotated[
    str,
    Argument(
        metavar="[RUN]",
        help="A run's name, the beginning of it, or its folder; the newest when left out.",
        autocompletion=complete_runs,
    ),
]
File = Annotated[Path, Argument(metavar="FILE", help="JSONL, JSON, CSV or Parquet.")]
Limit = Annotated[int, Option(min=0, metavar="N", help="At most N; 0 for all.")]
Oracle = Annotated[
    bool,
    Option("--oracle", help="Let the judge use hidden columns (the reference); this is counted."),
]


class JudgeFlags(NamedTuple):
    """The flags that describe a judge."""

    with_: Annotated[
        str,
        Option(
            "--with",
            metavar="NAME",
            help="direct, point, list, openrs, ...; an unknown name lists them all.",
        ),
    ] = "direct"
    model: Annotated[
        str,
        Option(
            metavar="MODEL",
            help="smollm2, a model folder, or http://host:port/v1#model; tiny reads too little.",
        ),
    ] = ""
    option: Annotated[
        list[str] | None,
        Option(metavar="KEY=VALUE", help="A setting of the judge; may be repeated."),
    ] = None
    both_orders: Annotated[
        bool, Option("--both-orders/--one-order", help="Ask about pairs in both orders.")
    ] = True
    rule: Annotated[
        Literal["mean", "votes", "strict", "abstain"] | None,
        Option(help="How two orders become one verdict; abstain: none where they disagree."),
    ] = None
    anchor: Annotated[
        str, Option(metavar="COLUMN", help="Compare each response with this column's text.")
    ] = ""
    max_tokens: Annotated[
        int | None, Option(min=1, help="Most tokens of one reply; 1024, or what it needs.")
    ] = None
    temperature: Annotated[float, Option(min=0.0, help="0 is greedy.")] = 0.0
    concurrency: Annotated[int, Option(min=1, help="Items, and requests, at the same time.")] = 16
    rpm: Annotated[float | None, Option(min=1, help="Most requests a minute to the server.")] = None
    tpm: Annotated[float | None, Option(min=1, help="Most tokens a minute to the server.")] = None
    retries: Annotated[int, Option(min=0, help="Further requests where the server fails.")] = 4
    hedge_after: Annotated[
        float | None, Option(min=0.001, metavar="SECONDS", help="Send a slow request once more.")
    ] = None
    structured: Annotated[
        Literal["auto", "on", "off"], Option(help="Let the server force the verdict's JSON form.")
    ] = "auto"
    media: Annotated[
        Literal["send", "mark"],
        Option(help="Send images and sounds, or marks that stand for them."),
    ] = "send"
    media_count: Annotated[int, Option(min=0, help="Most images and sounds in one request.")] = 16
    media_mb: Annotated[float, Option(min=0.0, help="Most megabytes of them in one request.")] = (
        20.0
    )
    api_key_env: ApiKeyEnv = ""
    prices: Annotated[
        str, Option(metavar="IN,OUT", help="Dollars for a million tokens read and written.")
    ] = ""
    budget_calls: Annotated[int | None, Option(min=0, help="Most calls.")] = None
    budget_tokens: Annotated[int | None, Option(min=0, help="Most tokens.")] = None
    budget_usd: Annotated[float | None, Option(min=0.0, help="Most dollars.")] = None
    cache: Annotated[
        Path | None, Option(metavar="FILE", help="Keep replies here; equal questions cost once.")
    ] = None
    record: Annotated[
        Path | None, Option(metavar="FILE", help="Write every question and raw reply here.")
    ] = None
    replay: Annotated[
        Path | None, Option(metavar="FILE", help="Answer from such a record, without a call.")
    ] = None


def takes(
    flags: type[NamedTuple], without: Collection[str] = (), **fixed: Any
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command one flag for each field of a record in place of its argument `flags`.

    Fields named in `without` have no flag there; `fixed` are other defaults than usual.
    """
    record: Any = flags

    def around(command: Callable[..., int]) -> Callable[..., int]:
        kinds = get_type_hints(record, include_extras=True)
        usual = {**record._field_defaults, **fixed}
        names = [name for name in record._fields if name not in without]
        shared = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=usual[name], annotation=kinds[name]
            )
            for name in names
        ]

        @wraps(command)
        def typed(**given: Any) -> int:
            own = record(**(usual | {one: given.pop(one) for one in names if one in given}))
            return command(flags=own, **given)

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
