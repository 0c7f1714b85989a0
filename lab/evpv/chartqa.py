"""A real extractor on real pictures: premises of ChartQA checked against what OCR reads in the chart.

    python -m lab.evpv.chartqa --data DATA                   # 5 seeds; OCR first, some CPU minutes

DATA holds `chartqa/{test,train}.parquet`: 110 charts as PNG with the tables behind them. RapidOCR reads
the words of each chart once (kept in `--words FILE`), geometry and colours make facts of them, and
premises are matched with these as everywhere in EVPV. Only the table is used to write premises and only
the picture to check them.

A problem is a question over two to four cells of one table ("the sum of these values"); a candidate quotes
each cell as a premise, adds them and answers. 30 % of the candidates misread: each premise with the chance
0.5 and at least one, by the flip rule or, half of the time, as the value of another cell of the chart,
which is how people misread charts. 15 % make a logic error. The answer is the sum of what was read, so a
candidate is right where it misread nothing and erred nowhere. The verifier does not see the picture: it
finds 80 % of the logic errors and 25 % of the misread premises, and raises 7 % false alarms. Candidates and
verifier are simulated, by the same figures as in `geometry.py`; pictures, extractor and its errors are real.

Best of 8 by: no gate; OCR facts; OCR facts with a share dropped or flipped; perfect facts (the table);
facts of another chart (a control: what a gate does that has never seen the picture). Seeds draw questions
and candidates anew; intervals are over charts (bootstrap of clusters), since charts are what was sampled.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import random
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import structs

from burnish.rewards.judges.evpv import (
    FactIndex,
    Outcome,
    corrupt_drop,
    corrupt_flip,
    read_fact,
    read_statement,
)
from burnish.rewards.judges.evpv.charts import Page, Word, page_facts, read_words
from burnish.rewards.judges.evpv.evidence import Picture
from burnish.rewards.judges.evpv.facts import Fact, squeeze, subject_of
from burnish.rewards.judges.evpv.matching import numbers_in, support_of
from burnish.rewards.judges.evpv.metrics import flip_text
from burnish.rewards.models.pair_metrics import auc
from burnish.seeds import derive
from lab.evpv.candidates import Candidate, accuracy, draw, share_any, share_right
from lab.evpv.tables import Row, draw_curves, mean, write_table

RESULTS = Path(__file__).parent / "results"
RATIOS = (0.2, 0.4, 0.6, 0.8, 1.0)
MISREADS, EACH, LOGIC = 0.30, 0.5, 0.15
CANDIDATES, QUESTIONS = 8, 8
"""Of a question; of a chart and a seed."""


LOOKED_AT = frozenset(
    f"{name}.png"
    for name in [
        "multi_col_100196",
        "two_col_60555",
        "two_col_80074",
        "two_col_80130",
        "two_col_21003",
        "multi_col_20569",
        "multi_col_100839",
        "multi_col_60391",
        "multi_col_80156",
        "two_col_103544",
        "two_col_3847",
    ]
)
"""Charts whose words or picture were looked at while the pairing of labels and values was written."""


class Chart(NamedTuple):
    """A chart: what its table says, and what was read in its picture."""

    id: str
    split: str
    premises: list[str]
    """A cell each, as `row column = value`; with one column of values as `row = value`."""
    facts: list[Fact]
    has_series: bool
    prints_values: bool
    """Whether half of the values of its table stand in the picture as numbers that OCR reads."""


class Drawn(NamedTuple):
    """A question with its candidates and the premises that they quote."""

    chart: Chart
    candidates: list[Candidate]
    claims: list[list[str]]


def load(folder: Path, words: Path, limit: int = 0) -> list[Chart]:
    """The charts with their words; read by OCR where the file of words does not have them yet."""
    import pyarrow.parquet as pq

    known = _known(words)
    found = []
    rows = [
        row
        for split in ("test", "train")
        for row in pq.read_table(folder / "chartqa" / f"{split}.parquet").to_pylist()
    ]
    for number, row in enumerate(rows[: limit or None], start=1):
        picture = Picture(row["image_png"])
        if picture.sha256 not in known:
            known[picture.sha256] = read_words(picture)
            _keep(words, picture.sha256, known[picture.sha256])
            print(f"read {number} of {len(rows)}: {row['imgname']}", flush=True)
        facts = page_facts(known[picture.sha256], picture).facts
        premises = cells(row["table_csv"])
        if len(premises) >= 2:
            found.append(_chart(row, premises, list(facts), known[picture.sha256]))
    return found


def _chart(row: dict[str, Any], premises: list[str], facts: list[Fact], page: Page) -> Chart:
    seen = {number for word in page.words for number in numbers_in(word.text)}
    values = [numbers_in(one.rpartition("=")[2]) for one in premises]
    printed = sum(bool(value & seen) for value in values)
    has_series = len(next(csv.reader(io.StringIO(row["table_csv"])))) > 2
    is_printed = 2 * printed >= len(values)
    return Chart(row["imgname"], row["split"], premises, facts, has_series, is_printed)


def _known(file: Path) -> dict[str, Page]:
    if not file.exists():
        return {}
    found = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        found[row["sha256"]] = Page(
            [Word(*word) for word in row["words"]], row["unsure"], row["turns"]
        )
    return found


def _keep(file: Path, sha256: str, page: Page) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    row = {"sha256": sha256, "words": page.words, "unsure": page.unsure, "turns": page.turns}
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(row) + "\n")


def cells(table: str) -> list[str]:
    """The numeric cells of a table as premises."""
    rows = list(csv.reader(io.StringIO(table)))
    heads, found = rows[0], []
    for row in rows[1:]:
        for head, cell in zip(heads[1:], row[1:], strict=False):
            subject = row[0] if len(heads) == 2 else f"{row[0]} {head}"
            premise = f"{subject} = {cell.replace(',', '').strip()}"
            if row[0].strip() and len(premise) < 400:
                said = read_statement(premise)
                if said is not None and said.quantity is not None:
                    found.append(premise)
    return list(dict.fromkeys(found))


def drawn(chart: Chart, seed: int, number: int) -> Drawn:
    """A question over some cells, and eight candidates."""
    rng = random.Random(derive("evpv", "chartqa", seed, chart.id, number))
    asked = rng.sample(chart.premises, min(rng.choice((2, 3, 4)), len(chart.premises)))
    candidates, claims = [], []
    for _ in range(CANDIDATES):
        one = draw(rng, len(asked), 2, misreads=MISREADS, each=EACH, logic=LOGIC)
        candidates.append(one)
        claims.append(
            [
                misread(premise, chart.premises, rng) if is_misread else premise
                for premise, is_misread in zip(asked, one.misread, strict=True)
            ]
        )
    return Drawn(chart, candidates, claims)


def misread(premise: str, all_premises: Sequence[str], rng: random.Random) -> str:
    """The premise with another value: that of another cell, or the same one misread."""
    subject, _, value = premise.rpartition(" = ")
    others = [
        one.rpartition(" = ")[2]
        for one in all_premises
        if numbers_in(one.rpartition(" = ")[2]) != numbers_in(value)
    ]
    if others and rng.random() < 0.5:
        return f"{subject} = {rng.choice(others)}"
    return f"{subject} = {flip_text(value, rng)}"


def supports(index: FactIndex, item: Drawn, place: int, one: Candidate) -> list[float]:
    """The support of each premise of a candidate."""
    found = (support_of(index.match(claim)) for claim in item.claims[place])
    return [support for support in found if support is not None]


def spoilt(facts: Sequence[Fact], how: Any, ratio: float, seed: int, name: str) -> list[Fact]:
    """The facts with a share dropped or flipped, in their label or in their value."""
    tables = [{"text": fact.text, "place": place} for place, fact in enumerate(facts)]
    found = []
    for one in how(tables, ratio, seed=seed, sample_id=name):
        old = facts[one["place"]]
        if one["text"] == old.text:
            found.append(old)
            continue
        new = read_fact(one["text"], is_single=old.is_single)
        subject = subject_of(new.text)
        is_same = subject == subject_of(old.text)
        aliases = old.aliases if is_same else (squeeze(subject),)
        found.append(structs.replace(new, aliases=aliases))
    return found


def perfect(chart: Chart) -> list[Fact]:
    """The cells of its table."""
    return [read_fact(one, is_single=True) for one in chart.premises]


def run(charts: Sequence[Chart], seed: int) -> dict[str, list[float]]:
    """All arms of one seed: for each chart the mean accuracy over its questions."""
    items = {
        chart.id: [drawn(chart, seed, number) for number in range(QUESTIONS)] for chart in charts
    }

    def arm(facts: Any) -> list[float]:
        found = []
        for place, chart in enumerate(charts):
            own = items[chart.id]
            rows = [one.candidates for one in own]
            if facts is None:
                found.append(accuracy(rows, None))
                continue
            index = FactIndex(facts(place, chart))
            found.append(accuracy(rows, [partial(supports, index, one) for one in own]))
        return found

    arms = {
        "pass@1": [share_right([one.candidates for one in items[c.id]]) for c in charts],
        "pass@8": [share_any([one.candidates for one in items[c.id]]) for c in charts],
        "ungated": arm(None),
        "gated by OCR": arm(lambda _, chart: chart.facts),
        "gated by perfect facts": arm(lambda _, chart: perfect(chart)),
        "gated by another chart": arm(lambda place, _: charts[place - 1].facts),
    }
    for name, how in (("drop", corrupt_drop), ("flip", corrupt_flip)):
        for ratio in RATIOS:
            arms[f"{name} {ratio:g}"] = arm(
                lambda _, chart, how=how, ratio=ratio: spoilt(
                    chart.facts, how, ratio, seed, chart.id
                )
            )
    return arms


def outcomes(charts: Sequence[Chart], seed: int) -> dict[str, float]:
    """What OCR says of true and of misread premises: shares, precision, recall, and the AUC."""
    counts: Counter[str] = Counter()
    scores: list[float] = []
    truths: list[int] = []
    for chart in charts:
        rng = random.Random(derive("evpv", "chartqa outcomes", seed, chart.id))
        index = FactIndex(chart.facts)
        for premise in chart.premises:
            for name, claim in (
                ("true", premise),
                ("misread", misread(premise, chart.premises, rng)),
            ):
                matched = index.match(claim)
                counts[f"{name} {matched.outcome}"] += 1
                scores.append(support_of(matched) or 0.0)
                truths.append(int(name == "true"))
    total = sum(len(chart.premises) for chart in charts)
    found = {
        f"{name} {outcome}": counts[f"{name} {outcome}"] / total
        for name in ("true", "misread")
        for outcome in Outcome
    }
    read = counts[f"true {Outcome.SUPPORTED}"] + counts[f"true {Outcome.CONTRADICTED}"]
    if read:
        found["precision"] = counts[f"true {Outcome.SUPPORTED}"] / read
    found["recall"] = counts[f"true {Outcome.SUPPORTED}"] / total
    area = auc(scores, truths)
    return found | ({"AUC": area} if area is not None else {})


def interval(differences: Sequence[float], seed: int = 0, draws: int = 2000) -> tuple[float, float]:
    """95 % of the mean over charts, by drawing charts with replacement."""
    rng = random.Random(derive("evpv", "chartqa bootstrap", seed))
    means = sorted(mean(rng.choices(differences, k=len(differences))) for _ in range(draws))
    return means[int(0.025 * draws)], means[int(0.975 * draws) - 1]


def by_chart(runs: Sequence[dict[str, list[float]]], arm: str) -> list[float]:
    """The accuracy of each chart, mean over seeds."""
    return [mean(values) for values in zip(*(one[arm] for one in runs), strict=True)]


def report(
    charts: Sequence[Chart],
    runs: Sequence[dict[str, list[float]]],
    told: Sequence[dict[str, float]],
    out: Path,
) -> None:
    """The table and the picture."""
    rows = [Row(arm, [mean(one[arm]) for one in runs]) for arm in runs[0]]
    rows += [Row(key, [one[key] for one in told]) for key in told[0]]
    lines = []
    base = by_chart(runs, "ungated")
    arms = ["gated by OCR", "gated by perfect facts", "gated by another chart"]
    for arm in [*arms, f"drop {RATIOS[-1]:g}", f"flip {RATIOS[-1]:g}"]:
        differences = [a - b for a, b in zip(by_chart(runs, arm), base, strict=True)]
        low, high = interval(differences)
        lines.append(f"- {arm} minus ungated: {mean(differences):+.3f} [{low:+.3f}, {high:+.3f}]")
    lines.append("")
    for name, keep in _GROUPS.items():
        places = [place for place, chart in enumerate(charts) if keep(chart)]
        if places:
            level = {
                arm: mean([by_chart(runs, arm)[place] for place in places])
                for arm in ("ungated", "gated by OCR", "gated by perfect facts")
            }
            shares = outcomes([charts[place] for place in places], 0)
            lines.append(
                f"- {name} ({len(places)} charts): ungated {level['ungated']:.3f}, OCR "
                f"{level['gated by OCR']:.3f}, perfect {level['gated by perfect facts']:.3f}; recall "
                f"{shares['recall']:.2f}"
            )
    cells_count = sum(len(chart.premises) for chart in charts)
    head = (
        f"{len(runs)} seeds, {len(charts)} charts with {cells_count} numeric cells, {QUESTIONS} questions a "
        f"chart and seed, {CANDIDATES} candidates; mean over charts [lowest, highest seed]. Precision and "
        "recall are those of OCR's facts over all cells; the rows true and misread say what the matcher "
        "made of premises"
    )
    note = "Differences on the same charts, 95 % over charts (bootstrap):\n\n" + "\n".join(lines)
    write_table(out / "chartqa.md", "ChartQA with OCR as the extractor", head, rows, note)
    start = [mean(one["gated by OCR"]) for one in runs]
    curves = {
        name: [(0.0, start), *((r, [mean(one[f"{name} {r:g}"]) for one in runs]) for r in RATIOS)]
        for name in ("drop", "flip")
    }
    levels = {
        name: mean([mean(one[name]) for one in runs])
        for name in ("ungated", "gated by perfect facts")
    }
    draw_curves(
        out / "chartqa.png", "share of the facts that OCR read which are spoilt", curves, levels
    )


_GROUPS: dict[str, Any] = {
    "one series": lambda chart: not chart.has_series,
    "several series": lambda chart: chart.has_series,
    "values printed in the chart": lambda chart: chart.prints_values,
    "values not printed": lambda chart: not chart.prints_values,
    "not looked at before": lambda chart: chart.id not in LOOKED_AT,
    "test split": lambda chart: chart.split == "test",
    "other split": lambda chart: chart.split != "test",
}


def main() -> None:
    """Run and write `results/chartqa.md` and its picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--words", type=Path, default=Path("chartqa_words.jsonl"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--limit", type=int, default=0, help="charts; 0: all")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    charts = load(given.data, given.words, given.limit)
    runs = []
    for seed in given.seeds:
        runs.append(run(charts, seed))
        print(seed, {arm: round(mean(values), 3) for arm, values in runs[-1].items()}, flush=True)
    report(charts, runs, [outcomes(charts, seed) for seed in given.seeds], given.out)


if __name__ == "__main__":
    main()
