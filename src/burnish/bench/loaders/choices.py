"""Benchmarks of several responses to one prompt: RM-Bench, RewardBench 2, PPE.

Checked against real rows: RM-Bench (chat, code, safety-response). RewardBench 2 and PPE follow
public descriptions of their columns; no row of theirs was at hand.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

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
    scores = [
        (float(value[0] if isinstance(value, list) and value else value))
        for value in list_of(row, "scores")
    ]
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


def _ppe_subset(path: Path) -> str:
    named = f"{path.parent.name}/{path.stem}".lower()
    known = ("mmlu-pro", "mmlu_pro", "math", "gpqa", "ifeval", "mbpp")
    return next((name.replace("_", "-") for name in known if name in named), path.stem)


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


def load_alpaca_pairs(path: Path) -> list[Item]:
    """Pairs of model outputs with the preference of AlpacaEval's annotator (1 or 2; 0, 1.5: tie)."""
    wanted = ("instruction", "output_1", "output_2", "preference")
    return [_alpaca(row) for row in read_rows(path, "AlpacaEval annotations", [wanted])]


def _alpaca(row: Source) -> Item:
    values = row.values
    labels: dict[object, Choice] = {1: FIRST, 2: SECOND, 0: TIE, 1.5: TIE}
    label = values["preference"]
    # A preference between the two, such as 1.7, is for the nearer one.
    if isinstance(label, float) and 1 < label < 2 and label != 1.5:
        label = round(label)
    if label not in labels:
        raise unknown_label(row, "preference", label, "1, 2 or 1.5")
    id = f"{row.path.stem}/{row.number}"
    texts = [text_of(row, "output_1"), text_of(row, "output_2")]
    authors = tuple(str(values.get(f"generator_{k}") or "") for k in (1, 2))
    return Item(
        id,
        message(text_of(row, "instruction")),
        responses_of(id, texts),
        labels[label],
        str(values.get("dataset") or ""),
        authors=authors if all(authors) else (),
    )


WRITE = "Write one paragraph of creative writing."
"""The files of LAMP hold the paragraphs and not what their writers were asked for."""


def load_lamp(path: Path) -> list[Item]:
    """Paragraphs before and after a professional's edit, as LAMP asks a judge to compare them.

    Files of the set that score single paragraphs are something else, and left out.
    """
    rows = [row for row in read_rows(path, "LAMP", [("messages",)]) if _paragraphs(row)]
    if not rows:
        raise unknown_label(
            next(iter(read_rows(path, "LAMP", [("messages",)]))),
            "messages",
            "no pair",
            "a question about Paragraph 1 and Paragraph 2",
        )
    return [_lamp(row) for row in rows]


def _paragraphs(row: Source) -> list[str]:
    turns = row.values["messages"]
    asked = [turn["content"] for turn in turns if turn.get("role") == "user"]
    _, _, rest = (asked or [""])[-1].partition("Paragraph 1:\n")
    first, _, rest = rest.partition("\n\nParagraph 2:\n")
    second, end, _ = rest.partition("\n\nYou must produce")
    return [first.strip(), second.strip()] if end else []


def _lamp(row: Source) -> Item:
    said = str(row.values["messages"][-1].get("content"))
    try:
        best = {"1": FIRST, "2": SECOND}[str(json.loads(said)["preference"])]
    except (ValueError, KeyError, TypeError):
        raise unknown_label(row, "messages", said[:60], '{"preference": "1"} or "2"') from None
    id = f"{row.path.stem}/{row.values.get('id', row.number)}"
    return Item(id, message(WRITE), responses_of(id, _paragraphs(row)), best)
