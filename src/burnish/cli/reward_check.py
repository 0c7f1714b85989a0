"""`burnish reward check`: is this reward fit for training?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import anyio
from rich.text import Text

from burnish.bench.judge_rows import read_items
from burnish.bench.reward_check import Case, Report, check_reward
from burnish.cli.console import emit_json, number, one_line, out, say
from burnish.cli.rehearsal import answer_fields, script_for
from burnish.cli.words import resolve
from burnish.errors import UserError
from burnish.records import Response, Task
from burnish.rewards.config import build_all
from burnish.rewards.function import from_function
from burnish.rewards.scorer import Scorer, bind_check
from burnish.source import find_function
from burnish.tasks.config import build as build_tasks


class Query(NamedTuple):
    """The flags of `burnish reward check`."""

    data: Path | None = None
    limit: int = 50
    as_json: bool = False


def check(words: Sequence[str], query: Query) -> int:
    """Check a recipe's rewards or one function on responses of a file, or on scripted ones."""
    scorer, cases, source = _target(words, query)
    report = anyio.run(partial(check_reward, scorer, cases))
    if query.as_json:
        emit_json(_record(report, source))
    else:
        print_report(report, source)
    return 0


def _target(words: Sequence[str], query: Query) -> tuple[Scorer, list[Case], str]:
    if words and ".py:" in words[0]:
        if len(words) > 1:
            raise UserError(
                f"'{words[1]}' has no meaning behind a function; give a recipe instead."
            )
        if query.data is None:
            raise UserError(
                f"reward '{words[0]}' needs responses to score; give --data FILE with prompt and "
                "responses."
            )
        scorer: Scorer = from_function(find_function(words[0], "reward"))
        cases = read_cases(query.data, query.limit)
        bind_check(scorer, {name for case in cases for name in case.task.fields})
        return scorer, cases, str(query.data)
    if not words:
        raise UserError("nothing to check; expected a recipe or my_file.py:function.")
    asked = resolve(words)
    config = asked.resolved.value
    scorer = build_all(config.rewards, base=asked.root)
    if query.data is not None:
        cases = read_cases(query.data, query.limit)
        bind_check(scorer, {name for case in cases for name in case.task.fields})
        return scorer, cases, str(query.data)
    tasks = build_tasks(config.task, config.run.seed, asked.root)
    bind_check(scorer, tasks.fields)
    compared = answer_fields(scorer)
    cases = [_scripted(task, compared, config.experts.field) for task in tasks.sample(query.limit)]
    return scorer, cases, f"{len(cases)} tasks of the recipe, answered right, wrong and not at all"


def _scripted(task: Task, compared: Sequence[str], demonstration: str) -> Case:
    lines = script_for(task, compared, demonstration)
    responses = [Response(f"{task.id}.{line.label}", line.text) for line in lines]
    return Case(task, tuple(responses))


def read_cases(path: Path, limit: int = 0) -> list[Case]:
    """Groups of responses from a file; rows with the same prompt and fields are one group."""
    groups: dict[str, Case] = {}
    for item in read_items(path):
        task = item.task(oracle=True)
        key = repr((task.messages, sorted(task.fields.items(), key=lambda pair: pair[0])))
        known = groups.get(key)
        if known is None:
            groups[key] = Case(task, item.responses)
        else:
            groups[key] = Case(known.task, (*known.responses, *item.responses))
    cases = list(groups.values())
    return cases[:limit] if limit else cases


def print_report(report: Report, source: str) -> None:
    """One line a finding, with the worst examples under those that a policy could use."""
    say(
        f"reward '{report.reward}' on {report.responses} responses in {report.groups} groups "
        f"({one_line(source)})",
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
