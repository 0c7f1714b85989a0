"""Trace2Skill on real workbooks with a scripted agent: what the merge and its threshold are worth.

    python -m lab.trace2skill.workbooks            # minutes on one core; writes results/workbooks.md

No language model takes part. The agent cleans a table and makes eight mistakes, each of them unless
SKILL.md has the matching rule; of rules that contradict each other the last one counts. Workbooks
are written and scored as files. A failure is analysed by trying fixes and scoring again: only a fix
that passes teaches anything. Three of the sixty tasks to learn from have an odd gold file, which
teaches a wrong rule; some failures are noise. Edits are merged by MiniLM embeddings and support.
"""

from __future__ import annotations

import argparse
import datetime
import io
import itertools
import json
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import anyio
import numpy

from burnish.agents.trace2skill import (
    Patch,
    Record,
    Refused,
    Settings,
    Trace,
    distil,
    pool_of,
    united,
)
from burnish.agents.trace2skill.edits import plain_words
from burnish.agents.trace2skill.guards import NEGATIVE, support_of
from burnish.agents.trace2skill.patches import content_of
from burnish.bench.statistics import wilson
from burnish.lm.embedded import SentenceEncoder
from burnish.records import Message
from burnish.seeds import Seeds
from burnish.tools.spreadsheet import Spreadsheet, compare_workbooks

RESULTS = Path(__file__).parent / "results"
MISTAKES: dict[str, tuple[str, tuple[str, ...]]] = {
    "last_row": (
        "last row",
        (
            "- Include the last row of the table: loop to max_row itself, not to the row before it.",
            "- Check that the last row of the table is in the output; the loop must end at max_row.",
            "- The last row is lost when the loop stops one short of max_row: include it.",
        ),
    ),
    "text_numbers": (
        "text numbers",
        (
            "- Cast text numbers to real numbers before adding them up.",
            "- Amounts may be text numbers: convert them to numbers before you sum.",
            "- Convert text numbers to numeric values first, or sums will skip them.",
        ),
    ),
    "wrong_sheet": (
        "sheet that the task names",
        (
            "- Write to the sheet that the task names, not to the first one.",
            "- The result belongs on the sheet that the task names; never take the first sheet instead.",
            "- Open the sheet that the task names by its name before writing the result.",
        ),
    ),
    "unsorted": (
        "sort the rows",
        (
            "- Always sort the rows by item before writing them.",
            "- Remember to sort the rows of the output by item.",
            "- Before writing, sort the rows by the item column.",
        ),
    ),
    "formula": (
        "computed value",
        (
            "- Write the computed value of a total, not a formula without a stored result.",
            "- A formula without a stored result reads as empty: write the computed value of the total.",
            "- Totals must hold the computed value rather than an unevaluated formula.",
        ),
    ),
    "no_header": (
        "header row",
        (
            "- Keep the header row above the copied data.",
            "- The header row of the table must be written too, above the data.",
            "- Copy the header row into the output before the data rows.",
        ),
    ),
    "duplicates": (
        "duplicate rows",
        (
            "- Drop duplicate rows before writing the table.",
            "- Remove duplicate rows from the data so that every row stands once.",
            "- Write each row once: filter out duplicate rows first.",
        ),
    ),
    "date_text": (
        "real dates",
        (
            "- Write dates as real dates, not as text.",
            "- Date cells must be real dates, never strings.",
            "- Keep the date column as real dates instead of text.",
        ),
    ),
}
"""By mistake: the words by which the agent knows the rule, and how analysts put it."""
ODD = {
    "unsorted": "- Do not sort the rows of the output; leave them in the order of the input.",
    "duplicates": "- Do not remove duplicate rows; copy the table with every row as it is.",
    "no_header": "- Do not write the header row; the output has data rows only.",
}
"""Wrong rules that follow from the odd gold files."""
ONE_OFF = (
    "- Close other programs before saving.",
    "- A merged cell at the top left can swallow the second line.",
    "- Keyboard layouts may swap quotation marks.",
    "- Take a screenshot of the table for later.",
    "- Colours carry no meaning in this company.",
    "- Print areas are better left alone.",
    "- The mallet supplier renames its goods every March.",
    "- Comments of reviewers may cover a value.",
    "- Zoom in when fonts are tiny.",
    "- Frozen panes hide what scrolls away.",
    "- Ask for the newest template when in doubt.",
    "- Hyphens and dashes look alike in some fonts.",
)
"""Lessons of single smudged cells."""
SKILL = {
    "SKILL.md": "---\nname: tables\ndescription: Clean a table of a workbook.\n---\n# Tables\n\n"
    "Read the table on the first sheet, clean it, write it where the task says.\n\n## Rules\n"
    "- Save the workbook at the end.\n"
}
ITEMS = ("bolt", "clamp", "drill", "file", "gauge", "hinge", "jig", "key", "lathe", "mallet")


@dataclass(frozen=True)
class Job:
    """One workbook task."""

    name: str
    rows: tuple[tuple[str, int, bool, datetime.datetime], ...]
    """Item, amount, whether it is stored as text, date."""
    traps: frozenset[str]
    """Mistakes that the agent makes here unless it knows better."""
    odd: str = ""
    noise: str = ""
    """`cell`: one wrong cell, `lost`: a failure that nobody can explain."""


def jobs(seed: int, part: str, count: int) -> list[Job]:
    """Tasks of one part; the first three to learn from have an odd gold file."""
    made = []
    for number in range(count):
        rng = Seeds(seed).rng("workbooks", part, number)
        traps = frozenset(name for name in MISTAKES if rng.random() < 0.25)
        rows = []
        for _ in range(rng.randrange(6, 12)):
            day = datetime.datetime(2024, rng.randrange(1, 13), rng.randrange(1, 28))
            rows.append((rng.choice(ITEMS), rng.randrange(10, 900), rng.random() < 0.4, day))
        rows[1] = (rows[1][0], rows[1][1], True, rows[1][3])
        rows.insert(rng.randrange(2, len(rows)), rows[0])
        odd = list(ODD)[number // 7] if part == "learn" and number % 7 == 0 and number < 21 else ""
        noise = rng.choice(["cell", "cell", "lost"]) if rng.random() < 0.12 else ""
        # The trap of an odd task is its gold file, so it is clean otherwise.
        if odd:
            traps, noise = frozenset(), ""
        made.append(Job(f"{part}-{number:03d}", tuple(rows), traps, odd, noise))
    return made


def table_of(job: Job, wrong: frozenset[str]) -> tuple[list[list[Any]], Any]:
    """The cleaned rows and the total, with these mistakes."""
    rows = list(job.rows)
    if "duplicates" not in wrong:
        rows = list(dict.fromkeys(rows))
    if "last_row" in wrong:
        rows = rows[:-1]
    total: Any = sum(
        amount for _, amount, text, _ in rows if not (text and "text_numbers" in wrong)
    )
    if "unsorted" not in wrong:
        rows.sort(key=lambda row: (row[0], row[3], row[1]))
    if "formula" in wrong:
        total = "=SUM(B:B)"
    cells: list[list[Any]] = [] if "no_header" in wrong else [["item", "amount", "date"]]
    for item, amount, _, day in rows:
        cells.append([item, amount, f"{day:%d/%m/%Y}" if "date_text" in wrong else day])
    return cells, total


def workbook(job: Job, wrong: frozenset[str], *, noise: bool = False) -> bytes:
    """The file after the agent's work."""
    book = Spreadsheet()
    book.book.active.title = "Data"
    data = {"A1": "item", "B1": "amount", "C1": "date"}
    for place, (item, amount, is_text, day) in enumerate(job.rows, start=2):
        data |= {
            f"A{place}": item,
            f"B{place}": str(amount) if is_text else amount,
            f"C{place}": day,
        }
    book.write(data)
    book.book.create_sheet("Out")
    cells, total = table_of(job, wrong)
    target = "Data" if "wrong_sheet" in wrong else "Out"
    values = {
        f"{column}{row}": value
        for row, line in enumerate(cells, start=1)
        for column, value in zip("ABC", line, strict=True)
    }
    values["E1"] = total
    if noise:
        values["A2"] = "smudge" if job.noise == "cell" else "lost"
    book.write(values, target)
    stream = io.BytesIO()
    book.book.save(stream)
    return stream.getvalue()


@cache
def gold_of(job: Job) -> bytes:
    """The right file; of an odd task with the odd demand."""
    return workbook(job, frozenset([job.odd]) if job.odd else frozenset())


@cache
def passes(job: Job, wrong: frozenset[str], *, noise: bool = False) -> bool:
    """Whether the agent's file has what the gold file has, by the scorer of SpreadsheetBench."""
    output = workbook(job, wrong, noise=noise)
    return compare_workbooks(gold_of(job), output, "'Out'!A1:E14").passed is True


def heeded(text: str) -> frozenset[str]:
    """Mistakes that the skill keeps the agent from; of opposite rules the last one counts."""
    found = set()
    for name, (words, _) in MISTAKES.items():
        orders = [
            "do not" in line.lower() and name in ODD
            for line in text.split("\n")
            if words in line.lower() or (name in ODD and line == ODD[name])
        ]
        if orders and not orders[-1]:
            found.add(name)
    return frozenset(found)


def decisions(job: Job, skill: Mapping[str, str]) -> frozenset[str]:
    """The mistakes that the agent makes with a skill."""
    return job.traps - heeded(skill["SKILL.md"])


def rate(tasks: Sequence[Job], skill: Mapping[str, str]) -> int:
    """Tasks passed with a skill."""
    return sum(passes(job, decisions(job, skill), noise=bool(job.noise)) for job in tasks)


class ScriptedRoles:
    """Analysts, proposer and merger by code."""

    def __init__(self, tasks: Sequence[Job], merge: Callable[[Sequence[Patch]], Patch]) -> None:
        self.tasks = {job.name: job for job in tasks}
        self.merge_all = merge
        self.tried = self.accepted = self.merges = 0
        self.records: dict[str, Record | Refused] = {}

    async def analyse(self, trace: Trace, files: Mapping[str, str]) -> Record | Refused:
        """The smallest set of changes with which the file passes; nothing where none does."""
        if trace.passed:
            return Refused("passed: no mistake to explain")
        if trace.id not in self.records:
            self.records[trace.id] = self._explain(trace)
        return self.records[trace.id]

    def _explain(self, trace: Trace) -> Record | Refused:
        job = self.tasks[trace.task_id]
        wrong = frozenset(json.loads(trace.messages[-1].text))
        # What the agent did wrong, what the gold file may want instead, and the smudged cell.
        candidates = [
            *sorted(wrong),
            *(f"odd {name}" for name in ODD),
            *(["smudge"] if job.noise else []),
        ]
        for size in range(1, len(candidates) + 1):
            for chosen in itertools.combinations(candidates, size):
                self.tried += 1
                odd = {name.removeprefix("odd ") for name in chosen if name.startswith("odd ")}
                fixed = (wrong - set(chosen)) | odd
                still = bool(job.noise) and not ("smudge" in chosen and job.noise == "cell")
                if passes(job, frozenset(fixed), noise=still):
                    self.accepted += 1
                    return Record(trace, tuple({"cause": one} for one in chosen), True)
        return Refused("no fix passes")

    async def propose(self, records: Sequence[Record], files: Mapping[str, str]) -> Patch | Refused:
        """A rule for each cause, in the analyst's own wording; none that the skill has already."""
        edits = []
        for record in records:
            known = heeded(files["SKILL.md"])
            for item in record.items:
                text = self._rule(item["cause"], record.trace.id)
                if item["cause"] not in known and text not in files["SKILL.md"]:
                    edits.append({
                        "op": "append_to_section", "file": "SKILL.md", "target_section": "## Rules",
                        "content": text, "source_ids": [record.trace.id],
                    })  # fmt: skip
        return Patch(tuple(edits), source_ids=tuple(record.trace.id for record in records))

    def _rule(self, cause: str, trace: str) -> str:
        rng = Seeds(0).rng("wording", cause, trace)
        if cause.startswith("odd "):
            return ODD[cause.removeprefix("odd ")]
        if cause == "smudge":
            return rng.choice(ONE_OFF)
        return rng.choice(MISTAKES[cause][1])

    async def merge(
        self, patches: Sequence[Patch], files: Mapping[str, str], level: int
    ) -> list[Patch]:
        self.merges += 1
        return [self.merge_all(patches)]

    async def anchor(self, edit: dict[str, Any], text: str) -> None:
        return None

    async def fix(self, files: Mapping[str, str], problems: Sequence[str]) -> Patch:
        return Patch()


def traces_of(tasks: Sequence[Job], skill: Mapping[str, str]) -> list[Trace]:
    """What the agent did with a skill."""
    found = []
    for job in tasks:
        wrong = decisions(job, skill)
        said = (
            Message("user", f"Clean the table of {job.name}.xlsx."),
            Message("assistant", json.dumps(sorted(wrong))),
        )
        found.append(
            Trace(id=job.name, task_id=job.name, instruction="Clean the table and write it to Out.",
                  messages=said, passed=passes(job, wrong, noise=bool(job.noise)))
        )  # fmt: skip
    return found


def learn(
    traces: Sequence[Trace], roles: ScriptedRoles, settings: Settings, order: int | None = None
) -> dict[str, str]:
    """The skill after distillation; `order` shuffles the arrival of trajectories."""
    given = list(traces)
    if order is not None:
        random.Random(order).shuffle(given)
    pool = pool_of(given)
    if settings.order == "sequential":
        # A pool is sorted; one after another they come as they come.
        pool = pool._replace(passed=(), failed=tuple(given))
        settings = replace_settings(settings, pool="error")

    async def work() -> dict[str, str]:
        return (await distil(pool, SKILL, roles, settings)).files

    return anyio.run(work)


def replace_settings(settings: Settings, **changes: Any) -> Settings:
    """Settings with some values changed."""
    import msgspec

    return msgspec.structs.replace(settings, **changes)


ARMS = {
    "parallel, threshold": Settings(merge_size=1000),
    "parallel, no threshold": Settings(merge_size=1000, threshold=False),
    "sequential": Settings(order="sequential"),
}


def rules_of(skill: Mapping[str, str]) -> list[str]:
    """Rules of SKILL.md, links and the first one left out."""
    lines = [line for line in skill["SKILL.md"].split("\n") if line.startswith("- ")]
    return [line for line in lines if "references/" not in line and "Save the workbook" not in line]


def is_noise(rule: str) -> bool:
    """Whether a rule came of noise or of an odd gold file."""
    return rule in ODD.values() or rule in ONE_OFF


def merge_by_meaning(
    embed: Callable[[Sequence[str]], Any], *, threshold: float
) -> Callable[[Sequence[Patch]], Patch]:
    """A merge of all patches at once: edits of one file and section whose contents mean the same.

    `embed` gives a unit vector for each text. Contents of cosine `threshold` and above are joined,
    also through others, so that the order changes nothing; the wording that most of them have stays.
    """

    def merge(patches: Sequence[Patch]) -> Patch:
        flat = united(patches, 1)
        edits = list(flat.edits)
        if not edits:
            return flat
        vectors = numpy.asarray(embed([content_of(edit) for edit in edits]), dtype=float)
        # Embeddings hardly see a "not": what forbids is never joined with what demands.
        places = [
            (e.get("file"), e["op"], e.get("target_section"), is_forbidding(content_of(e)))
            for e in edits
        ]
        owner = list(range(len(edits)))
        for i, j in numpy.argwhere(numpy.tril(vectors @ vectors.T >= threshold, -1)):
            if places[i] == places[j] and edits[i]["op"] not in EXACT:
                first, second = sorted((owner[i], owner[j]))
                owner = [first if one == second else one for one in owner]
        made = []
        for group in dict.fromkeys(owner):
            members = [i for i, one in enumerate(owner) if one == group]
            best = max(members, key=lambda i: (support_of(edits[i]), len(content_of(edits[i])), -i))
            sources = {one for i in members for one in edits[i].get("source_ids", ())}
            made.append({**edits[best], "source_ids": sorted(sources)})
        return flat._replace(edits=tuple(made))

    return merge


EXACT = ("replace_in_section", "delete_section", "create", "delete_file")
"""Operations whose target matters more than their content."""


def is_forbidding(text: str) -> bool:
    """Whether a rule begins by forbidding: never, do not, avoid."""
    words = plain_words(text.replace("'", "").replace("\u2019", "")).split()
    return bool(NEGATIVE & set(words[:3]))


def measure(seeds: int, orders: int, count: int, threshold: float) -> dict[str, Any]:
    """Pass rates on the test tasks: over seeds in the order of the pool, and over orders of one."""
    merge = merge_by_meaning(SentenceEncoder().encode, threshold=threshold)
    table: dict[str, Any] = {"seeds": [], "orders": {}}
    for seed in range(seeds):
        train, test = jobs(seed, "learn", count), jobs(seed, "test", count)
        traces = traces_of(train, SKILL)
        roles = ScriptedRoles(train, merge)
        row: dict[str, Any] = {"seed": seed, "S0": rate(test, SKILL)}
        row["ceiling"] = sum(not job.noise for job in test)
        for name, settings in ARMS.items():
            skill = learn(traces, roles, settings, order=0)
            rules = rules_of(skill)
            row[name] = {"passed": rate(test, skill), "rules": len(rules),
                         "noise": sum(map(is_noise, rules)),
                         "lines": len(skill["SKILL.md"].split("\n"))}  # fmt: skip
        row |= {"failed": sum(not one.passed for one in traces), "accepted": roles.accepted,
                "tried": roles.tried}  # fmt: skip
        table["seeds"].append(row)
        print(row, flush=True)
        if seed == 0:
            for name, settings in ARMS.items():
                skills = [learn(traces, roles, settings, order=n) for n in range(orders)]
                table["orders"][name] = {
                    "passed": [rate(test, skill) for skill in skills],
                    "different": len({json.dumps(skill, sort_keys=True) for skill in skills}),
                    "noise": [sum(map(is_noise, rules_of(skill))) for skill in skills],
                }
            print(table["orders"], flush=True)
    return table


def page(table: Mapping[str, Any], count: int, seconds: float) -> str:
    """The results as Markdown."""
    rows, arms = table["seeds"], list(ARMS)

    def share(total: int) -> str:
        found = wilson(total, count * len(rows))
        return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"

    lines = [
        "# Trace2Skill on workbooks, scripted agent",
        "",
        f"`python -m lab.trace2skill.workbooks`: {len(rows)} seeds of {count} tasks to learn from "
        f"and {count} test tasks, {seconds:.0f} s on one core. No language model took part.",
        "",
        "| arm | passed of the test tasks | rules | of them noise | lines of SKILL.md |",
        "|---|---|---|---|---|",
        f"| S0 | {share(sum(row['S0'] for row in rows))} | 0 | 0 | {len(SKILL['SKILL.md'].split(chr(10)))} |",
    ]
    for arm in arms:
        own = [row[arm] for row in rows]
        mean = {
            key: statistics.mean(one[key] for one in own) for key in ("rules", "noise", "lines")
        }
        passed = share(sum(one["passed"] for one in own))
        lines.append(
            f"| {arm} | {passed} | {mean['rules']:.1f} | {mean['noise']:.1f} | {mean['lines']:.1f} |"
        )
    lines += [
        f"| no noise at all (ceiling) | {share(sum(row['ceiling'] for row in rows))} | | | |",
        "",
        f"Failures explained by a fix that passes: {sum(r['accepted'] for r in rows)} of "
        f"{sum(r['failed'] for r in rows)} ({sum(r['tried'] for r in rows)} fixes tried and scored). "
        "Depth of calls of the parallel arms: 3 (propose, one merge, anchor); of the sequential one: "
        "one for each record.",
        "",
        f"Ten orders of arrival of the same trajectories (seed 0, {count} test tasks):",
        "",
        "| arm | pass rate, mean | spread (sd) | lowest | highest | different skills | noise rules |",
        "|---|---|---|---|---|---|---|",
    ]
    for arm, found in table["orders"].items():
        rates = [value / count for value in found["passed"]]
        lines.append(
            f"| {arm} | {statistics.mean(rates):.3f} | {statistics.pstdev(rates):.3f} | "
            f"{min(rates):.3f} | {max(rates):.3f} | {found['different']} of {len(rates)} | "
            f"{statistics.mean(found['noise']):.1f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--orders", type=int, default=10)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--threshold", type=float, default=0.6, help="cosine of equal rules")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    start = time.perf_counter()
    table = measure(given.seeds, given.orders, given.count, given.threshold)
    text = page(table, given.count, time.perf_counter() - start)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "workbooks.md").write_text(text, encoding="utf-8")
    (given.out / "workbooks.json").write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
