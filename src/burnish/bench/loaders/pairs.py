"""Benchmarks of pairs: JudgeBench, LLMBar, PandaLM.

Checked against real rows: JudgeBench in the form with `chosen` and `rejected`, LLMBar and PandaLM.
JudgeBench's own form (`response_A`, `response_B`, `label` as "A>B") follows its public description.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from burnish.bench.items import Choice, Item, message, responses_of, shuffled
from burnish.bench.loaders.reading import Source, read_rows, text_of, unknown_label

FIRST: Choice = (0,)
SECOND: Choice = (1,)
TIE: Choice = (0, 1)


def load_judgebench(path: Path) -> list[Item]:
    """Pairs of which one response is objectively right; the subset is the source of the question."""
    shapes = (
        ("prompt", "chosen", "rejected"),
        ("question", "response_A", "response_B", "label"),
    )
    return [_judgebench(row) for row in read_rows(path, "JudgeBench", shapes)]


def _judgebench(row: Source) -> Item:
    values = row.values
    id = str(values.get("question_id") or values.get("pair_id") or row.number)
    subset = _family(str(values.get("query_type") or values.get("source") or ""))
    if "chosen" in values:
        prompt = text_of(row, "prompt")
        texts, best, _ = shuffled(id, [text_of(row, "chosen")], [text_of(row, "rejected")])
    else:
        prompt = text_of(row, "question")
        texts = [text_of(row, "response_A"), text_of(row, "response_B")]
        labels = {"A>B": FIRST, "B>A": SECOND}
        label = str(values["label"])
        if label not in labels:
            raise unknown_label(row, "label", label, "A>B or B>A")
        best = labels[label]
    hidden = {"reference": values["ground_truth"]} if values.get("ground_truth") else {}
    author = str(values.get("response_model") or "")
    return Item(
        id,
        message(prompt),
        responses_of(id, texts),
        best,
        subset,
        authors=(author, author) if author else (),
        info={"topic": str(values.get("query_type") or values.get("source") or "")},
        hidden=hidden,
    )


def _family(topic: str) -> str:
    """`mmlu-pro-economics` and its like are reported together."""
    for family in ("mmlu-pro", "livebench-reasoning", "livebench-math", "livecodebench"):
        if topic.startswith(family):
            return family
    return topic


def load_llmbar(path: Path) -> list[Item]:
    """Instruction-following pairs; the published layout is one dataset.json for each subset."""
    rows = read_rows(path, "LLMBar", [("input", "output_1", "output_2", "label")])
    return [_llmbar(row, path) for row in rows]


def _llmbar(row: Source, root: Path) -> Item:
    subset = str(row.values.get("subset") or _folder(row.path, root))
    id = str(row.values.get("id") or f"{subset}-{row.number}")
    label = row.values["label"]
    if label not in (1, 2):
        raise unknown_label(row, "label", label, "1 or 2")
    texts = [text_of(row, "output_1"), text_of(row, "output_2")]
    best = FIRST if label == 1 else SECOND
    return Item(id, message(text_of(row, "input")), responses_of(id, texts), best, subset)


def _folder(file: Path, root: Path) -> str:
    """`Adversarial/Manual` of Dataset/LLMBar/Adversarial/Manual/dataset.json."""
    parts = file.parent.parts
    if "LLMBar" in parts:
        return "/".join(parts[parts.index("LLMBar") + 1 :])
    return "/".join(file.parent.relative_to(root).parts) if root.is_dir() else file.parent.name


def load_pandalm(path: Path) -> list[Item]:
    """Pairs with three people's marks each (0 tie, 1, 2); the label is their majority.

    The subset says whether the majority prefers one of the two or finds them equal.
    """
    wanted = ("instruction", "response1", "response2", "annotator1", "annotator2", "annotator3")
    return [_pandalm(row) for row in read_rows(path, "PandaLM", [wanted])]


def _pandalm(row: Source) -> Item:
    values = row.values
    id = str(values.get("idx", row.number))
    people = tuple(_mark(row, f"annotator{k}") for k in (1, 2, 3))
    top, votes = Counter(people).most_common(1)[0]
    best = top if votes > 1 else None
    subset = "people disagree" if best is None else "equal" if best == TIE else "one is better"
    request = text_of(row, "instruction")
    if values.get("input"):
        request = f"{request}\n\n{values['input']}"
    texts = [text_of(row, "response1"), text_of(row, "response2")]
    models = tuple(str(values.get("cmp_key") or "").split("_"))
    return Item(
        id,
        message(request),
        responses_of(id, texts),
        best,
        subset,
        authors=models if len(models) == 2 else (),
        people=people,
    )


def _mark(row: Source, column: str) -> Choice:
    marks = {0: TIE, 1: FIRST, 2: SECOND}
    value = row.values[column]
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    if value not in marks:
        raise unknown_label(row, column, value, "0 (tie), 1 or 2")
    return marks[value]
