"""Trace2Skill with a real small agent: do worked examples from its own trajectories help SmolLM2?

    python -m lab.trace2skill.examples                       # minutes on a GPU; writes results/examples.md
    python -m lab.trace2skill.examples --model tiny --tasks 6 --test 6 --seeds 1 --out /tmp/trial

Micro-tasks of three kinds: dates, units, values of a record. A 135 M model ignores abstract rules and
follows worked examples, so analysts write examples: a trajectory that passed is one as it is; for a
failed one candidate fixes are tried and scored, and the first that passes is one (none: the trajectory
is discarded). The merge joins each kind's rule with its two shortest examples; what is joined has the
support of all its trajectories. No language model analyses: analysts, proposer and
merge are rules. Arms, greedy on the same test tasks: no skill, the weak draft, the distilled skill, and
the distilled skill with the examples' answers exchanged (shuffled sources).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from burnish.agents.trace2skill import Patch, Record, Refused, Trace, distil, pool_of, skill_prompt
from burnish.bench.statistics import paired_difference, wilson
from burnish.concurrency import gather
from burnish.lm import open_lm
from burnish.lm.base import LM, Sampling
from burnish.records import Message
from burnish.seeds import derive

RESULTS = Path(__file__).resolve().parent / "results"
DRAFT = {
    "SKILL.md": "---\nname: small-tasks\ndescription: Short answers to small tasks.\n---\n"
    "# Small tasks\n\nAnswer the task.\n\n## Rules\n\n- Be brief.\n"
}
RULES = {
    "date": "- Dates: write the date as YYYY-MM-DD and nothing else.",
    "unit": "- Units: write the number with its unit and nothing else.",
    "record": "- Records: write the value that is asked for and nothing else.",
}
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
UNITS = (
    ("m", "cm", 100),
    ("km", "m", 1000),
    ("kg", "g", 1000),
    ("h", "min", 60),
    ("l", "ml", 1000),
)
FIELDS = {
    "name": ("Anna", "Bruno", "Clara", "David", "Eva", "Felix"),
    "city": ("Rome", "Oslo", "Lima", "Cairo", "Paris", "Quito"),
    "colour": ("red", "blue", "green", "black", "white", "grey"),
}
LIMIT = 16
"""Tokens of an answer."""


class Job(NamedTuple):
    """A task and its answer."""

    name: str
    kind: str
    question: str
    answer: str


def jobs(count: int, seed: str) -> list[Job]:
    """So many tasks of each kind, no question twice."""
    rng, found = random.Random(seed), dict[str, Job]()
    for kind in RULES:
        own = 0
        while own < count:
            question, answer = _draw(kind, rng)
            if question not in found:
                own += 1
                found[question] = Job(f"{seed}-{kind}-{own}", kind, question, answer)
    return list(found.values())


def _draw(kind: str, rng: random.Random) -> tuple[str, str]:
    if kind == "date":
        year, month, day = rng.randint(1990, 2029), rng.randint(1, 12), rng.randint(1, 28)
        return f"Date: {day} {MONTHS[month - 1]} {year}", f"{year}-{month:02d}-{day:02d}"
    if kind == "unit":
        big, small, times = rng.choice(UNITS)
        number = rng.randint(2, 60)
        return f"Convert {number} {big} to {small}", f"{number * times} {small}"
    row = {name: rng.choice(values) for name, values in FIELDS.items()}
    asked = rng.choice(list(row))
    shown = ", ".join(f"{name}={value}" for name, value in row.items())
    return f"Record: {shown}. What is the {asked}?", row[asked]


def is_right(job: Job, text: str) -> bool:
    """Exact match of the first line, without the full stop and with any spacing."""
    first = (text.strip().splitlines() or [""])[0]
    return _plain(first) == _plain(job.answer)


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text.strip().rstrip(".")).casefold()


async def answers(
    lm: LM, tasks: Sequence[Job], skill: Mapping[str, str] | None, sampling: Sampling
) -> list[list[str]]:
    """What the agent says to each task, with a skill in its system message or without."""

    async def one(job: Job) -> list[str]:
        asked = (Message("user", job.question),)
        told = (Message("system", skill_prompt(skill)),) if skill is not None else ()
        own = Sampling(
            n=sampling.n, temperature=sampling.temperature, max_tokens=LIMIT,
            seed=derive(sampling.seed, job.name) % 2**31,
        )  # fmt: skip
        return [found.text for found in await lm.sample((*told, *asked), own)]

    return await gather([partial(one, job) for job in tasks], limit=len(tasks))


def traces_of(tasks: Sequence[Job], said: Sequence[Sequence[str]]) -> list[Trace]:
    """A trajectory for each different answer to a task."""
    return [
        Trace(
            id=f"{job.name}.{place}",
            task_id=job.name,
            instruction=job.question,
            messages=(Message("user", job.question), Message("assistant", text)),
            passed=is_right(job, text),
        )
        for job, texts in zip(tasks, said, strict=True)
        for place, text in enumerate(dict.fromkeys(texts))
    ]


class ExampleRoles:
    """Analysts, proposer and merge by rule."""

    def __init__(self, tasks: Sequence[Job]) -> None:
        self.jobs = {job.name: job for job in tasks}

    async def analyse(self, trace: Trace, files: Mapping[str, str]) -> Record | Refused:
        """The rule of the task's kind, and the example: the answer, or the fix that passes."""
        job, said = self.jobs[trace.task_id], trace.messages[-1].text
        tried = [said.strip().split("\n")[0]] if trace.passed else fixes(job.question, said)
        right = next((one for one in tried if is_right(job, one)), None)
        if right is None:
            return Refused("no fix passes")
        return Record(trace, ({"kind": job.kind, "example": (job.question, right)},), True)

    async def propose(self, records: Sequence[Record], files: Mapping[str, str]) -> Patch:
        """One edit a record: the rule, with its example."""
        edits = [edit_of(item["kind"], item.get("example"), [one.trace.id])
                 for one in records for item in one.items]  # fmt: skip
        return Patch(tuple(edits), source_ids=tuple(one.trace.id for one in records))

    async def merge(
        self, patches: Sequence[Patch], files: Mapping[str, str], level: int
    ) -> list[Patch]:
        """One edit a kind: its rule and its two shortest examples, supported by all."""
        edits = []
        for kind, rule in RULES.items():
            own = [e for patch in patches for e in patch.edits if e["content"].startswith(rule)]
            shown = {pair for edit in own for pair in examples_in(edit["content"])}
            best = sorted(shown, key=lambda pair: (len("".join(pair)), pair))[:2]
            sources = sorted({one for edit in own for one in edit["source_ids"]})
            if own:
                edits.append({**edit_of(kind, None, sources), "content": content(kind, best)})
        return [Patch(tuple(edits), source_ids=tuple(s for p in patches for s in p.source_ids))]

    async def anchor(self, edit: dict[str, Any], text: str) -> None:
        """Targets are exact here."""

    async def fix(self, files: Mapping[str, str], problems: Sequence[str]) -> Patch:
        """Nothing to repair."""
        return Patch()


def fixes(question: str, said: str) -> list[str]:
    """Candidates for the right answer, from the words of the reply and of the question alone."""
    words = re.findall(r"[\w-]+", said) + re.findall(r"=(\w+)", question)
    date = re.search(r"(\d+) (\w+) (\d{4})", question)
    if date is not None and date[2] in MONTHS:
        day, month, year = int(date[1]), MONTHS.index(date[2]) + 1, date[3]
        words += [f"{day}.{month}.{year}", f"{month}/{day}/{year}", f"{year}-{month:02d}-{day:02d}"]
    units = re.search(r"(\d+) \w+ to (\w+)", question)
    if units is not None:
        words += [f"{int(units[1]) * times} {units[2]}" for times in (10, 60, 100, 1000)]
    return list(dict.fromkeys(words))


def edit_of(kind: str, example: tuple[str, str] | None, sources: list[str]) -> dict[str, Any]:
    """An edit that adds a kind's rule, with an example where there is one."""
    return {
        "op": "append_to_section", "file": "SKILL.md", "target_section": "## Rules",
        "content": content(kind, [example] if example else []), "source_ids": sources,
    }  # fmt: skip


def content(kind: str, examples: Sequence[tuple[str, str]]) -> str:
    """A rule and its examples as lines."""
    return "\n".join([RULES[kind], *(f"  {asked}\n  {said}" for asked, said in examples)])


def examples_in(text: str) -> list[tuple[str, str]]:
    """The examples that `content` wrote."""
    lines = [line.strip() for line in text.split("\n")[1:]]
    return list(zip(lines[::2], lines[1::2], strict=True))


def shuffled(skill: Mapping[str, str]) -> dict[str, str]:
    """The skill with each example's answer taken from the next example."""
    lines = skill["SKILL.md"].split("\n")
    places = [i for i, line in enumerate(lines) if line.startswith("  ")][1::2]
    answers = [lines[i] for i in places]
    for place, answer in zip(places, answers[1:] + answers[:1], strict=True):
        lines[place] = answer
    return {**skill, "SKILL.md": "\n".join(lines)}


async def play(lm: LM, asked: argparse.Namespace, seed: int) -> dict[str, Any]:
    """One seed: trajectories with the draft, the distilled skill, and all arms on the test tasks."""
    learn, test = jobs(asked.tasks, f"learn{seed}"), jobs(asked.test, f"test{seed}")
    known = {job.question for job in learn}
    test = [job for job in test if job.question not in known]
    drawn = Sampling(n=asked.samples, temperature=1.0, seed=seed)
    pool = pool_of(traces_of(learn, await answers(lm, learn, DRAFT, drawn)))
    found = await distil(pool, DRAFT, ExampleRoles(learn))
    arms = {
        "no skill": None,
        "weak draft": DRAFT,
        "distilled": found.files,
        "distilled, shuffled sources": shuffled(found.files),
    }
    greedy = Sampling(n=1, temperature=0.0)
    marks = {}
    for name, skill in arms.items():
        said = await answers(lm, test, skill, greedy)
        marks[name] = [is_right(job, texts[0]) for job, texts in zip(test, said, strict=True)]
    return {
        "seed": seed,
        "status": found.status,
        "passed": len(pool.passed),
        "failed": len(pool.failed),
        "kinds": [job.kind for job in test],
        "skill": found.files["SKILL.md"],
        "marks": marks,
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """All seeds together, with intervals, and the paired change against the draft."""
    lines = [
        f"{len(rows)} seeds; trajectories to learn from: {sum(one['passed'] for one in rows)} passed, "
        f"{sum(one['failed'] for one in rows)} failed.", "",
        "| arm | exact match on test tasks | against the draft, paired | " + " | ".join(RULES) + " |",
        "|---|---|---|" + "---|" * len(RULES),
    ]  # fmt: skip
    draft = [float(m) for one in rows for m in one["marks"]["weak draft"]]
    kinds = [kind for one in rows for kind in one["kinds"]]
    for name in rows[0]["marks"]:
        marks = [m for one in rows for m in one["marks"][name]]
        rate = wilson(sum(marks), len(marks))
        change = paired_difference(draft, [float(m) for m in marks])
        moved = f"{change.value:+.3f} [{change.low:+.3f}, {change.high:+.3f}]"
        by_kind = []
        for kind in RULES:
            own = [m for m, k in zip(marks, kinds, strict=True) if k == kind]
            by_kind.append(f"{sum(own)} of {len(own)}")
        shown = f"{rate.value:.3f} [{rate.low:.3f}, {rate.high:.3f}]"
        lines.append(
            f"| {name} | {shown} | {'' if name == 'weak draft' else moved} | {' | '.join(by_kind)} |"
        )
    each = ", ".join(
        "/".join(f"{sum(marks) / len(marks):.2f}" for marks in one["marks"].values())
        for one in rows
    )
    return "\n".join([*lines, "", f"By seed, in the order of the rows: {each}."]) + "\n"


def main() -> None:
    """Every seed, then the table; what is done is kept."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tasks", type=int, default=32, help="of each kind, to learn from")
    parser.add_argument("--test", type=int, default=64, help="of each kind")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    lm, rows = open_lm(asked.model), list[dict[str, Any]]()
    for seed in range(asked.seeds):
        rows.append(asyncio.run(play(lm, asked, seed)))
        (asked.out / "examples.json").write_text(json.dumps(rows, indent=1) + "\n")
        (asked.out / "examples.md").write_text(table(rows))
        print(f"seed {seed}: {rows[-1]['status']}\n{table(rows)}", flush=True)


if __name__ == "__main__":
    main()
