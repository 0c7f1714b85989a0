"""`burnish reward check`: is this reward fit for training?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from rich.text import Text
from typer import Argument, Option

from burnish.cli.console import emit_json, number, one_line, out, say
from burnish.cli.reward_weigh import read_steps
from burnish.cli.shared_options import RUNS, AsJson, RunsFolder
from burnish.config.recipes import all_recipes, resolve
from burnish.errors import UserError, did_you_mean
from burnish.source import find_function
from burnish.store import RunStore, find_run

if TYPE_CHECKING:
    from burnish.bench.reward_check import Case, Report
    from burnish.rewards.scorer import Scorer


def reward_check(
    words: Annotated[
        list[str],
        Argument(
            metavar="RECIPE|RUN|FILE.py:NAME KEY=VALUE",
            help="A recipe with settings to change, a run, or a reward function of yours.",
        ),
    ],
    data: Annotated[
        Path | None,
        Option(
            metavar="FILE|RUN",
            help="Rows with prompt, responses and fields, or the stored answers of a run.",
        ),
    ] = None,
    limit: Annotated[int, Option(min=1, metavar="N", help="Groups to score.")] = 50,
    step: Annotated[
        str, Option(metavar="N|A..B", help="Only answers of these steps of a run.")
    ] = "",
    runs: RunsFolder = RUNS,
    as_json: AsJson = False,
) -> int:
    """Is a reward fit for training? Range, ties, failures, cost, and what cheap edits do to it.

    Every response is scored as it is, with padding, repetition, hedging and
    other formats, as its first word alone and as no text at all. Without
    --data a recipe's own tasks are answered right, wrong and not at all. A
    run's rewards, as they are now, are checked on the answers that it stored,
    in their groups.

    \b
      burnish reward check grpo
      burnish reward check grpo-7c
      burnish reward check my_rewards.py:close --data grpo-7c
      burnish reward check my_rewards.py:close --data answers.jsonl
    """
    import anyio

    from burnish.bench.reward_check import check_reward

    scorer, cases, source = _target(words, _Data(data, limit, step, runs))
    report = anyio.run(check_reward, scorer, cases)
    if as_json:
        emit_json(_record(report, source))
    else:
        print_report(report, source)
    return 0


class _Data(NamedTuple):
    path: Path | None
    limit: int
    step: str
    runs: Path

    def cases(self, scorer: Scorer) -> tuple[Scorer, list[Case], str]:
        """Those of the file or run that is named."""
        from burnish.bench.reward_check import cases_for

        if self.path is None:
            raise UserError(
                f"reward '{scorer.name}' needs responses to score; give --data FILE with prompt and "
                "responses, or --data RUN."
            )
        if not self.path.is_file():
            return self.stored(scorer, find_run(self.runs, str(self.path)), has_record=False)
        if self.step:
            raise UserError(f"--step {self.step} is for runs; {self.path} is a file.")
        return scorer, cases_for(scorer, self.path, self.limit), str(self.path)

    def stored(
        self, scorer: Scorer, run: Path, *, has_record: bool
    ) -> tuple[Scorer, list[Case], str]:
        """Those of a run."""
        from burnish.bench.reward_check import run_cases
        from burnish.rewards.scorer import bind_check

        first, last = read_steps(self.step)
        with RunStore.open(run, read_only=True) as store:
            cases = run_cases(store, self.limit, first=first, last=last, has_record=has_record)
        bind_check(scorer, frozenset(cases[0].task.fields))
        return scorer, cases, f"stored answers of run '{run.name}'"


def _target(words: Sequence[str], data: _Data) -> tuple[Scorer, list[Case], str]:
    """The reward, the groups to score, and a line that says where they are from."""
    from burnish.rewards.config import build_all
    from burnish.rewards.function import from_function

    word, *more = words
    is_function, run = ".py" in word, None
    if not is_function and not word.endswith(".toml"):
        run = _run_of(word, data.runs)
    if more and (is_function or run is not None):
        raise UserError(f"'{more[0]}' has no meaning behind '{word}'; give a recipe instead.")
    if is_function:
        scorer: Scorer = from_function(find_function(word, "reward"))
        return data.cases(scorer)
    if run is None:
        return _recipe_target(words, data)
    from burnish.api.run import Run

    # A run's own rewards, as they are now, on its stored answers or on those of --data.
    config = Run(run).config
    scorer = build_all(config.rewards, base=config.asked.root)
    return data.stored(scorer, run, has_record=True) if data.path is None else data.cases(scorer)


def _run_of(word: str, runs: Path) -> Path | None:
    """The run that a word names; None for a recipe or a setting."""
    if word in all_recipes() or "=" in word or Path(word).is_file():
        return None
    try:
        return find_run(runs, word)
    except UserError as error:
        hint = did_you_mean(word, all_recipes())
        raise UserError(f"'{word}' is no recipe and no run: {error}{hint}") from None


def _recipe_target(words: Sequence[str], data: _Data) -> tuple[Scorer, list[Case], str]:
    from burnish.bench.reward_check import scripted_case
    from burnish.bench.scripted_answers import answer_fields
    from burnish.rewards.config import build_all
    from burnish.rewards.scorer import bind_check
    from burnish.tasks.config import build as build_tasks

    asked = resolve(words)
    config = asked.resolved.value
    scorer = build_all(config.rewards, base=asked.root)
    if data.path is not None:
        return data.cases(scorer)
    if data.step:
        raise UserError(f"--step {data.step} is for runs; '{words[0]}' is a recipe.")
    tasks = build_tasks(config.task, config.run.seed, asked.root)
    bind_check(scorer, tasks.fields)
    compared = answer_fields(scorer)
    cases = [
        scripted_case(task, compared, config.experts.field) for task in tasks.sample(data.limit)
    ]
    size = "1 task" if len(cases) == 1 else f"{len(cases)} tasks"
    # A generator's held-out side is no part of anything that could have been checked here.
    held_out = 0 if tasks.train_size is None else len(tasks.held_out())
    aside = f" beside {held_out} held out" if held_out else ""
    return scorer, cases, f"{size} of the recipe{aside}, answered right, wrong and not at all"


def print_report(report: Report, source: str) -> None:
    """One line a finding, with the worst examples under those that a policy could use."""
    say(
        f"reward '{report.reward}' on {report.responses} responses in {report.groups} "
        f"group{'' if report.groups == 1 else 's'} ({one_line(source)})",
        style="bold",
    )
    width = max(len(finding.name) for finding in report.findings)
    for finding in report.findings:
        line = Text(f"{finding.name:<{width}}  ", style="bright_black")
        line.append(one_line(finding.says), style="yellow" if finding.is_bad else "")
        out.print(line, soft_wrap=True)
        for example in finding.examples if finding.is_bad else ():
            before = number(example.value)
            head = f"{' ' * width}    {example.response}: {before} {example.change:+.3g}  "
            text = Text(one_line(head), style="bright_black").append(one_line(example.text))
            out.print(text, no_wrap=True, overflow="ellipsis")
    say(report.verdict, style="bold")


def _record(report: Report, source: str) -> dict[str, Any]:
    record = asdict(report)
    record["findings"] = [
        {
            **asdict(finding),
            "estimate": None if finding.estimate is None else finding.estimate._asdict(),
            "examples": [example._asdict() for example in finding.examples],
        }
        for finding in report.findings
    ]
    return {**record, "source": source, "verdict": report.verdict}
