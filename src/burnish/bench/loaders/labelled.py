"""Benchmarks of one answer: faithful to its documents or not, in steps, or by a list of demands.

All are checked against real rows. Documents and question are shown, and the label is hidden; a row that
people did not settle has none and is left out. HaluEval's general part ships no documents: the user's
request stands in their place, so that a checker can confirm only what the request says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from burnish.arguments import same_length
from burnish.bench.items import Item, message, responses_of
from burnish.bench.loaders.reading import (
    Source,
    label_of,
    list_of,
    parsed,
    posed,
    read_each,
    text_of,
    texts_of,
)
from burnish.boundary import public
from burnish.errors import UserError
from burnish.records import Message
from burnish.rewards.judges.march.roles import solver_messages
from burnish.rewards.judges.rubric.items import tier_of

PART = 40
"""Sentences of a WiCE page that make one document."""


def load_faithbench(path: Path) -> list[Item]:
    """Summaries of news; unfaithful where people marked anything as unwanted.

    Rows that were only called questionable have no label and are left out.
    """

    def items(row: Source) -> Iterator[Item]:
        labels = {str(word) for one in list_of(row, "annotations") for word in one["label"]}
        is_bad = any(word.startswith("Unwanted") for word in labels)
        if not is_bad and "Questionable" in labels:
            return
        id = f"{row.values.get('batch', 0)}-{row.values.get('sample_id', row.number)}"
        model = str(json.loads(str(row.values.get("metadata") or "{}")).get("summarizer", ""))
        documents, text = [text_of(row, "source")], text_of(row, "summary")
        yield _faithful_item(id, "Summarise the passage.", documents, text, not is_bad, model)

    return read_each(path, "FaithBench", [("source", "summary", "annotations")], items)


def load_wice(path: Path) -> list[Item]:
    """Claims of Wikipedia and the page that they cite; faithful where all of it is supported."""
    known = {"supported": True, "partially_supported": False, "not_supported": False}

    def items(row: Source) -> Iterator[Item]:
        is_faithful, lines = label_of(row, "label", known), texts_of(row, "evidence")
        pages = [" ".join(lines[at : at + PART]) for at in range(0, len(lines), PART)]
        query, id = "What does the page say?", str(row.values.get("id") or row.number)
        subset = str(row.values["label"])
        yield _faithful_item(id, query, pages, text_of(row, "claim"), is_faithful, subset)

    return read_each(path, "WiCE", [("claim", "evidence", "label")], items)


def load_halueval(path: Path) -> list[Item]:
    """Requests and ChatGPT's answers; unfaithful where people saw a hallucination."""

    def items(row: Source) -> Iterator[Item]:
        is_faithful = label_of(row, "hallucination", {"yes": False, "no": True})
        query, id = text_of(row, "user_query"), str(row.values.get("ID") or row.number)
        yield _faithful_item(id, query, [query], text_of(row, "chatgpt_response"), is_faithful)

    return read_each(path, "HaluEval", [("user_query", "chatgpt_response", "hallucination")], items)


def load_rgb(path: Path) -> list[Item]:
    """Questions with retrieved snippets: the right answer, and a wrong one that they contradict."""

    def items(row: Source) -> Iterator[Item]:
        documents = _texts(row, "positive")
        for column, is_faithful in (("answer", True), ("fakeanswer", False)):
            answer = row.values[column]
            text = answer if isinstance(answer, str) else " ".join(_texts(row, column))
            id = f"{row.values.get('id', row.number)}-{'right' if is_faithful else 'wrong'}"
            if documents:
                yield _faithful_item(id, text_of(row, "query"), documents, text, is_faithful)

    return read_each(path, "RGB", [("query", "answer", "fakeanswer", "positive")], items)


def _texts(row: Source, column: str) -> list[str]:
    found: list[str] = []
    for one in list_of(row, column):
        found += [str(inner) for inner in one] if isinstance(one, list) else [str(one)]
    return [text for text in found if text.strip()]


def _faithful_item(
    id: str, query: str, documents: Sequence[str], answer: str, is_faithful: bool, subset: str = ""
) -> Item:
    return Item(
        id,
        solver_messages(query, documents),
        responses_of(id, [answer]),
        subset=subset,
        shown={"documents": list(documents), "query": query},
        hidden={"faithful": is_faithful},
    )


def load_bigbench_mistake(path: Path) -> list[Item]:
    """Solutions of five BIG-Bench tasks; the subset is the task."""

    def items(row: Source) -> Iterator[Item]:
        yield _solution(row, "input", "steps", row.values["mistake_index"], "task", "id")

    return read_each(path, "BIG-Bench Mistake", [("input", "steps", "mistake_index")], items)


def load_mr_gsm8k(path: Path) -> list[Item]:
    """Solutions of GSM8K and its variants; the subset is the kind of question.

    Steps are counted from 1 in the file.
    """
    column, grade = "model_output_solution_first_error_step", "model_output_solution_correctness"

    def items(row: Source) -> Iterator[Item]:
        is_wrong = label_of(row, grade, {"correct": False, "wrong": True})
        first = int(row.values[column]) - 1 if is_wrong else None
        yield _solution(row, "question", "model_output_steps", first, "question_type", "uuid")

    return read_each(path, "MR-GSM8K", [("question", "model_output_steps", grade, column)], items)


def load_processbench(path: Path) -> list[Item]:
    """Solutions of mathematical problems; the subset is what the id begins with, such as gsm8k."""

    def items(row: Source) -> Iterator[Item]:
        first = None if row.values["label"] == -1 else row.values["label"]
        yield _solution(row, "problem", "steps", first, "split", "id")

    return read_each(path, "ProcessBench", [("problem", "steps", "label")], items)


def _solution(
    row: Source, prompt: str, steps: str, first: Any, subset: str, id_column: str
) -> Item:
    texts = texts_of(row, steps)
    if not all(text.strip() for text in texts) or first not in (None, *range(len(texts))):
        raise UserError(f"{row.where}: {len(texts)} steps and the first wrong one is {first!r}.")
    id = str(row.values.get(id_column) or row.number)
    return posed(
        id,
        text_of(row, prompt),
        ["\n\n".join(texts)],
        None,
        str(row.values.get(subset) or id.rpartition("-")[0]),
        hidden={"steps": texts, "first_wrong": None if first is None else int(first)},
    )


# --- one response by a list of demands


HEALTHBENCH = [("prompt", "prompt_id", "rubrics")]


class Demand(NamedTuple):
    """One criterion of a rubric: points are negative for what must not be there."""

    text: str
    points: float


class Marked(NamedTuple):
    item: Item
    demands: tuple[Demand, ...]
    met: tuple[bool, ...]
    recorded: float | None
    """The score that was published beside the marks."""


def load_healthbench(path: Path) -> list[Item]:
    """Conversations with criteria and points, and the same as a rubric of four tiers."""
    return read_each(path, "HealthBench", HEALTHBENCH, lambda row: [_health_item(row)])


def load_healthbench_marks(path: Path) -> list[Marked]:
    def marked(row: Source) -> Iterator[Marked]:
        if "responses" not in row.values:
            raise UserError(f"{row.where}: no recorded marks; give --with and --model instead.")
        demands, replies = _demands(row), list_of(row, "responses")
        both = zip(demands, replies, strict=True)
        met = tuple(bool(reply["response_dict"]["criteria_met"]) for _, reply in both)
        score = row.values.get("score")
        yield Marked(_health_item(row), demands, met, None if score is None else float(score))

    return read_each(path, "HealthBench", HEALTHBENCH, marked)


def _demands(row: Source) -> tuple[Demand, ...]:
    listed = list_of(row, "rubrics")
    return tuple(Demand(str(one["criterion"]), float(one["points"])) for one in listed)


@public
def rubric_score(points: Sequence[float], met: Sequence[bool]) -> float | None:
    """Points of the criteria that are met over all positive points; None where none is positive."""
    same_length("met", met, len(points), "points")
    total = sum(value for value in points if value > 0)
    if total == 0:
        return None
    return sum(value for value, is_met in zip(points, met, strict=True) if is_met) / total


def _health_item(row: Source) -> Item:
    id = text_of(row, "prompt_id")
    tags = [str(tag) for tag in parsed(row, "example_tags") or []]
    theme = next((tag.removeprefix("theme:") for tag in tags if tag.startswith("theme:")), "")
    answer = parsed(row, "prompt_response") if row.values.get("prompt_response") else []
    texts = [str(turn["content"]) for turn in answer][:1]
    demands = _demands(row)
    turns = tuple(
        Message(str(turn["role"]), str(turn["content"])) for turn in list_of(row, "prompt")
    )
    criteria = [{"criterion": d.text, "points": d.points} for d in demands]
    ideal = row.values.get("ideal_completions_data")
    return Item(
        id,
        turns,
        responses_of(id, texts),
        subset=theme,
        shown={"criteria": criteria, "rubric": _tiered(turns[-1].text, demands)},
        hidden={"reference": ideal} if ideal else {},
    )


def _tiered(query: str, demands: Sequence[Demand]) -> dict[str, Any]:
    """The same demands in four tiers by their points, as the judge `rubric` reads them."""
    items = []
    for number, demand in enumerate(demands, start=1):
        is_error = demand.points < 0
        low, middle = ("no such error", "a minor one") if is_error else ("not met", "partly met")
        items.append(
            {
                "id": str(number),
                "title": f"criterion {number}",
                "tier": tier_of(demand.points).value,
                "description": {"0": low, "1": middle, "2": demand.text},
            }
        )
    return {"query": query, "items": items}


def load_ifeval(path: Path) -> list[Item]:
    """Prompts with instructions that a machine can check; responses come from elsewhere."""

    def items(row: Source) -> Iterator[Item]:
        names = list_of(row, "instruction_id_list")
        family = str(names[0]).partition(":")[0] if len(names) == 1 else "several"
        shown = {"instruction_id_list": names, "kwargs": list_of(row, "kwargs")}
        prompt = message(text_of(row, "prompt"))
        yield Item(str(row.values["key"]), prompt, (), subset=family, shown=shown)

    shape = ("key", "prompt", "instruction_id_list", "kwargs")
    return read_each(path, "IFEval", [shape], items)
