"""`burnish eval`: a model's score on held-out tasks; the command around `burnish.evaluate`."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from burnish.cli.completion import complete_words
from burnish.cli.console import emit_json, err, interval, number, one_line, say, share
from burnish.cli.generate import write_rows
from burnish.cli.shared_options import RUNS, ApiKeyEnv, AsJson, DecodingWords, ModelName
from burnish.errors import UserError
from burnish.texts import counted

SHOWN = 3
"""Answers that are printed."""
OUTSIDE = 3
PROMPTS = 100
TELL_S = 10.0
"""How often a log hears how far it is."""


TaskWords = Annotated[
    list[str] | None,
    Argument(
        metavar="[TASK] KEY=VALUE",
        help="A recipe (its held-out tasks and rewards) with settings to change, a file of rows "
        "with --reward, or ifeval with --data. A run's own task where left out.",
        autocompletion=complete_words,
    ),
]
Rewards = Annotated[
    list[str] | None,
    Option(
        metavar="NAME",
        help="numeric, mathematics, match, ... or my_rewards.py:name; may be repeated.",
    ),
]
Data = Annotated[Path | None, Option(metavar="PATH", help="The benchmark's file or folder.")]
Prompts = Annotated[
    int | None, Option(min=1, help="At most so many; 100, or evaluation.prompts=N.")
]
AnswerTokens = Annotated[
    int | None, Option(min=1, help="Most tokens of an answer; the recipe's else.")
]
Part = Annotated[str, Option(metavar="NAME", help="Which reward is the score; the total.")]
Out = Annotated[
    Path | None, Option(metavar="FILE", help="Answers, one a line; under results/ else.")
]


def eval_(
    model: ModelName,
    words: TaskWords = None,
    reward: Rewards = None,
    data: Data = None,
    prompts: Prompts = None,
    max_tokens: AnswerTokens = None,
    part: Part = "",
    api_key_env: ApiKeyEnv = "",
    decoding: DecodingWords = "",
    out: Out = None,
    as_json: AsJson = False,
) -> int:
    """Score a model's greedy answers to held-out tasks, with an interval.

    Answers that could not be scored are counted and left out. Every answer
    is kept with its score in a file.

    \b
      burnish eval runs/NAME                         the run's own held-out tasks
      burnish eval smollm2 grpo --prompts 50
      burnish eval runs/NAME my.toml task.level=3
      burnish eval smollm2 questions.jsonl --reward mathematics --max-tokens 200
      burnish eval smollm2 ifeval --data ifeval/test.parquet --prompts 20
    """
    from burnish.api.measure import evaluate
    from burnish.api.models import open_model
    from burnish.seeds import digest

    typed = words or []
    run = _run_folder(model)
    if run is not None and not typed and not reward and not _has_rewards(run):
        return _print_stored(run, as_json=as_json)
    task, rewards = _task(typed, reward, data, run)
    if prompts is None and any(word.startswith("evaluation.prompts=") for word in typed):
        prompts = task.asked.resolved.value.evaluation.prompts
    prompts = PROMPTS if prompts is None else prompts
    lm = open_model(str(run or model), api_key_env, decoding)
    with err.status("answering and scoring ..."), _progress(quiet=as_json):
        found = evaluate(
            lm, task, rewards=rewards, prompts=prompts, max_tokens=max_tokens, part=part
        )
    settings = digest(
        *typed, str(reward), str(data), str(prompts), str(max_tokens), part, model, decoding
    )
    name = _plain(typed[0]) if typed else "own"
    path = out or Path("results") / f"eval-{name}-{_plain(model)}-{settings[:8]}.jsonl"
    write_rows(path, found.rows())
    record = {**found.record(), "file": str(path)}
    if as_json:
        emit_json(record)
    else:
        _print(record, found.rows())
    return 0 if record["valid"] else OUTSIDE


def _progress(*, quiet: bool) -> AbstractContextManager[None]:
    """Lines in a log: `held out: 40 of 100 prompts, 12 s`; a terminal has its spinner."""
    from burnish.activity import Activity, observed, told_every
    from burnish.training.events import Evaluating

    def tell(activity: Activity, seconds: float) -> None:
        done = Evaluating(0, activity.label, activity.done, activity.total, seconds)
        err.print(one_line(f"held out: {done}"), soft_wrap=True, markup=False)

    return nullcontext() if quiet or err.is_terminal else observed(told_every(TELL_S, tell))


def _run_folder(model: str) -> Path | None:
    """The folder of the run that a model's name means; None for other models."""
    from burnish.lm.base import SHIPPED
    from burnish.store.manifest import is_ours

    if "://" in model or model in SHIPPED:
        return None
    places = (Path(model).expanduser(), RUNS / model)
    return next((place for place in places if is_ours(place)), None)


def _has_rewards(run: Path) -> bool:
    from burnish.api.run import Run

    return bool(Run(run).config.asked.resolved.value.rewards)


def _print_stored(run: Path, *, as_json: bool) -> int:
    from burnish.cli.runs import MEASURES, held_out_score, setting
    from burnish.store import RunStore

    with RunStore.open(run, read_only=True) as store:
        found = store.evaluations("held_out")
        has_answers = setting(store.about, "train.kind") not in ("codec", "speech")
    advice = f" To score its answers, name a task with rewards: burnish eval {run} grpo"
    advice = advice if has_answers else ""
    last = found[-1] if found else None
    if last is None:
        raise UserError(f"run '{run.name}' has no rewards and no stored evaluation.{advice}")
    score, measure = held_out_score(last), last.summary.get("measure", "")
    what, unit = MEASURES.get(measure, (f"held-out {measure}".rstrip(), "prompt"))
    if as_json:
        emit_json({"run": str(run), "step": last.step, "measure": measure, "score": score})
        return 0
    count = counted(last.summary["count"], unit)
    say(
        f"{what} after {counted(last.step, 'step')}: {interval(score)} of {count}, as the run stored it"
    )
    say(f"The run has no rewards.{advice}")
    return 0


def _own_task(run: Path | None, words: list[str], rewards: Any) -> Any:
    from burnish.api.run import Run
    from burnish.config.given import Given, Origin, override

    if run is None:
        raise UserError(
            "task: got None; expected a recipe, a file of rows with --reward, or a benchmark"
        )
    changes = Given({}, Origin("command line"))
    for word in words:
        override(changes, word)
    return Run(run).config.replace(**changes.plain(), rewards=rewards)


def _task(
    words: list[str], reward: list[str] | None, data: Path | None, run: Path | None
) -> tuple[Any, Any]:
    from burnish.api.config import Config
    from burnish.bench.loaders import BENCHMARKS, load
    from burnish.config.recipes import all_recipes

    rewards = [_rooted(one) for one in reward] if reward else None
    if not words or (run is not None and all("=" in word for word in words)):
        return _own_task(run, words, rewards), None
    name, *settings = words
    if name in BENCHMARKS:
        if BENCHMARKS[name].kind != "instructions":
            raise UserError(
                f"'{name}' measures judges, not answers; use: burnish bench {name} --data PATH"
            )
        if data is None:
            raise UserError(f"'{name}' needs its data; give --data PATH, the published file")
        rows = [{"id": i.id, "prompt": i.task().prompt, **i.shown} for i in load(name, data)]
        return rows, ["instructions"]
    if data is not None:
        raise UserError(f"--data belongs to a benchmark; got it beside '{name}'")
    if name.endswith(".toml") or name in all_recipes() or "=" in name:
        more = {"rewards": rewards} if rewards else {}
        return Config.load(name, *settings, **more), None
    if settings or rewards is None:
        raise UserError(
            f"'{name}' is no recipe; expected one, or a file of rows with --reward, such as --reward "
            "match, and no settings"
        )
    return name, rewards


def _rooted(reward: str) -> str:
    """A function's file from this folder: the config behind `evaluate` has another root."""
    file, mark, name = reward.rpartition(":")
    return f"{Path(file).absolute()}:{name}" if mark and file.endswith(".py") else reward


def _plain(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-.")[-40:]


def _print(record: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    count = counted(record["count"], "answer")
    say(f"{one_line(record['model'])} on {one_line(record['task'])}, {count}", style="bold")
    if record["score"] is None:
        say("no answer could be scored", style="red")
        if reason := next((row.get("reason") for row in rows if row.get("reason")), ""):
            say(f"the first: {one_line(reason)}", style="red")
    else:
        score = (
            record["score"],
            record["low"],
            record["high"],
            round(record["count"] * record["valid"]),
        )
        text = interval(score)
        say(f"score  {text}{'  (95 % interval)' if '[' in text else ''}", style="green")
    if record["valid"] != 1:
        say(f"valid  {share(record['valid'])} could be scored", style="yellow")
    for row in rows[:SHOWN]:
        mark = row["status"] if row["score"] is None else number(row["score"])
        say(f"  {mark}  {one_line(row['prompt'])[:60]} -> {one_line(row['response'])[:80]}")
    say(f"all answers: {record['file']}")
