"""Benchmarks of several responses to one prompt: RM-Bench, RewardBench 2, PPE.

Checked against real rows: RM-Bench (chat, code, safety-response). RewardBench 2 and PPE follow
public descriptions of their columns; no row of theirs was at hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from burnish.bench.items import Choice, Item, message, responses_of, shuffled
from burnish.bench.loaders.reading import (
    Source,
    list_of,
    read_rows,
    text_of,
    texts_of,
    unknown_label,
)
from burnish.errors import UserError

DOMAINS = ("chat", "math", "code", "safety")
"""RM-Bench's domains, matched by the beginning of a name; both safety parts are one."""
STYLES = ("concise", "detailed", "markdown")


def load_rmbench(path: Path) -> list[Item]:
    """Nine pairs a row: each of three styles of the right answer against each of the wrong one.

    `info` holds the two styles as numbers; a longer wrong answer (right style below wrong style) is
    hard, the same style normal, a longer right answer easy.
    """
    rows = read_rows(path, "RM-Bench", [("prompt", "chosen", "rejected")])
    return [item for row in rows for item in _rmbench(row)]


def _rmbench(row: Source) -> list[Item]:
    right, wrong = texts_of(row, "chosen"), texts_of(row, "rejected")
    if len(right) != len(STYLES) or len(wrong) != len(STYLES):
        raise UserError(
            f"{row.where}: {len(right)} chosen and {len(wrong)} rejected texts; RM-Bench has "
            f"{len(STYLES)} styles of each: {', '.join(STYLES)}."
        )
    domain = _domain(row)
    group = f"{domain}/{row.values.get('id', row.number)}"
    items = []
    for i, good in enumerate(right):
        for j, bad in enumerate(wrong):
            id = f"{group}/{i}{j}"
            texts, best, _ = shuffled(id, [good], [bad])
            info = {"right_style": str(i), "wrong_style": str(j)}
            prompt = message(text_of(row, "prompt"))
            items.append(
                Item(id, prompt, responses_of(id, texts), best, domain, group=group, info=info)
            )
    return items


def _domain(row: Source) -> str:
    """From the column `domain`, else from the name of the file."""
    named = str(row.values.get("domain") or row.path.stem)
    return next((known for known in DOMAINS if named.lower().startswith(known)), named)


def load_rewardbench2(path: Path) -> list[Item]:
    """Best of four with one right response; in the subset Ties several are right, several wrong."""
    rows = read_rows(path, "RewardBench 2", [("id", "prompt", "chosen", "rejected", "subset")])
    return [_rewardbench2(row) for row in rows]


def _rewardbench2(row: Source) -> Item:
    right, wrong = texts_of(row, "chosen"), texts_of(row, "rejected")
    if not right or not wrong:
        raise UserError(
            f"{row.where}: {len(right)} chosen and {len(wrong)} rejected; expected both."
        )
    id, subset = text_of(row, "id"), text_of(row, "subset")
    texts, best, order = shuffled(id, right, wrong)
    models = row.values.get("models")
    known = isinstance(models, list) and len(models) == len(texts)
    authors = tuple(str(models[place]) for place in order) if known and models else ()
    group = id.rpartition(":")[2] if subset.lower() == "ties" else ""
    prompt = message(text_of(row, "prompt"))
    return Item(id, prompt, responses_of(id, texts), best, subset, group=group, authors=authors)


def load_ppe(path: Path) -> list[Item]:
    """Human preference pairs, or the sampled pairs of a right and a wrong response of Best-of-K."""
    shapes = (
        ("prompt", "response_1", "response_2", "winner"),
        ("prompt", "response_1", "scores", "sampled_conflict_pairs"),
    )
    rows = read_rows(path, "PPE", shapes)
    return [item for row in rows for item in _ppe(row)]


def _ppe(row: Source) -> list[Item]:
    if "scores" in row.values:
        return _ppe_correct(row)
    id = f"{row.values.get('question_id', 'row')}:{row.number}"
    label = str(row.values["winner"])
    best: Choice
    if label == "model_a":
        best = (0,)
    elif label == "model_b":
        best = (1,)
    elif label.startswith("tie"):
        best = (0, 1)
    else:
        raise unknown_label(row, "winner", label, "model_a, model_b or tie")
    texts = [text_of(row, "response_1"), text_of(row, "response_2")]
    authors = tuple(str(row.values.get(name) or "") for name in ("model_a", "model_b"))
    return [
        Item(
            id,
            message(text_of(row, "prompt")),
            responses_of(id, texts),
            best,
            str(row.values.get("language") or ""),
            authors=authors if all(authors) else (),
        )
    ]


def _ppe_correct(row: Source) -> list[Item]:
    scores = [_score(value) for value in list_of(row, "scores")]
    subset = _ppe_subset(row.path)
    group = f"{subset}/{row.values.get('question_id', row.number)}/{row.number}"
    items = []
    for place, pair in enumerate(list_of(row, "sampled_conflict_pairs")):
        first, second = (int(index) for index in pair)
        if not (min(first, second) >= 0 and max(first, second) < len(scores)):
            raise UserError(f"{row.where}: pair {pair} is outside the {len(scores)} scores.")
        if scores[first] == scores[second]:
            continue
        right, wrong = (first, second) if scores[first] > scores[second] else (second, first)
        id = f"{group}/{place}"
        good, bad = (text_of(row, f"response_{index + 1}") for index in (right, wrong))
        texts, best, _ = shuffled(id, [good], [bad])
        prompt = message(text_of(row, "prompt"))
        items.append(Item(id, prompt, responses_of(id, texts), best, subset, group=group))
    return items


def _score(value: Any) -> float:
    """Right or wrong; some exports keep it in a list of one."""
    return float(value[0] if isinstance(value, list) and value else value)


def _ppe_subset(path: Path) -> str:
    named = f"{path.parent.name}/{path.stem}".lower()
    known = ("mmlu-pro", "mmlu_pro", "math", "gpqa", "ifeval", "mbpp")
    return next((name.replace("_", "-") for name in known if name in named), path.stem)
