"""Benchmarks of several responses to one prompt.

RewardBench 2 and PPE follow public descriptions of their columns; no row of theirs was at hand. The
other loaders are checked against real rows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from burnish.bench.items import Choice, Item, shuffled
from burnish.bench.loaders.reading import (
    Source,
    label_of,
    list_of,
    posed,
    ranked,
    read_each,
    text_of,
    texts_of,
    words_of,
)
from burnish.errors import UserError

DOMAINS = ("chat", "math", "code", "safety")
"""RM-Bench's domains, matched by the beginning of a name; both safety parts are one."""
STYLES = range(3)
"""RM-Bench's: concise, detailed, detailed with markdown."""
FIRST: Choice = (0,)
SECOND: Choice = (1,)
TIE: Choice = (0, 1)


def load_rmbench(path: Path) -> list[Item]:
    """Nine pairs a row: each of three styles of the right answer against each of the wrong one.

    `info` holds the two styles as numbers; a longer wrong answer (right style below wrong style) is
    hard, the same style normal, a longer right answer easy.
    """

    def items(row: Source) -> Iterator[Item]:
        named = str(row.values.get("domain") or row.path.stem)
        domain = next((known for known in DOMAINS if named.lower().startswith(known)), named)
        group = f"{domain}/{row.values.get('id', row.number)}"
        prompt, wrong = text_of(row, "prompt"), texts_of(row, "rejected")
        for i, good in zip(STYLES, texts_of(row, "chosen"), strict=True):
            for j, bad in zip(STYLES, wrong, strict=True):
                info = {"right_style": str(i), "wrong_style": str(j)}
                id = f"{group}/{i}{j}"
                yield ranked(id, prompt, [good], [bad], subset=domain, group=group, info=info)

    return read_each(path, "RM-Bench", [("prompt", "chosen", "rejected")], items)


def load_rewardbench2(path: Path) -> list[Item]:
    """Best of four with one right response; in the subset Ties several are right, several wrong."""

    def items(row: Source) -> Iterator[Item]:
        id, subset = text_of(row, "id"), text_of(row, "subset")
        texts, best, order = shuffled(id, texts_of(row, "chosen"), texts_of(row, "rejected"))
        models = row.values.get("models")
        is_known = isinstance(models, list) and len(models) == len(texts)
        yield posed(
            id,
            text_of(row, "prompt"),
            texts,
            best,
            subset,
            group=id.rpartition(":")[2] if subset.lower() == "ties" else "",
            authors=tuple(str(models[place]) for place in order) if is_known and models else (),
        )

    shape = ("id", "prompt", "chosen", "rejected", "subset")
    return read_each(path, "RewardBench 2", [shape], items)


def load_ppe(path: Path) -> list[Item]:
    """Human preference pairs, or the sampled pairs of a right and a wrong response of Best-of-K."""
    shapes = (
        ("prompt", "response_1", "response_2", "winner"),
        ("prompt", "response_1", "scores", "sampled_conflict_pairs"),
    )
    return read_each(path, "PPE", shapes, _ppe)


def _ppe(row: Source) -> Iterator[Item]:
    values, prompt = row.values, text_of(row, "prompt")
    if "scores" not in values:
        id = f"{values.get('question_id', 'row')}:{row.number}"
        known = {"model_a": FIRST, "model_b": SECOND, "tie": TIE, "tie (bothbad)": TIE}
        yield posed(
            id,
            prompt,
            [text_of(row, "response_1"), text_of(row, "response_2")],
            label_of(row, "winner", known),
            str(values.get("language") or ""),
            authors=words_of(row, "model_a", "model_b"),
        )
        return
    scores = [float(v[0] if isinstance(v, list) and v else v) for v in list_of(row, "scores")]
    named = f"{row.path.parent.name}/{row.path.stem}".lower()
    sets = ("mmlu-pro", "mmlu_pro", "math", "gpqa", "ifeval", "mbpp")
    subset = next((name.replace("_", "-") for name in sets if name in named), row.path.stem)
    group = f"{subset}/{values.get('question_id', row.number)}/{row.number}"
    for place, pair in enumerate(list_of(row, "sampled_conflict_pairs")):
        first, second = sorted((int(index) for index in pair), key=lambda index: -scores[index])
        if scores[first] != scores[second]:
            good, bad = (text_of(row, f"response_{index + 1}") for index in (first, second))
            yield ranked(f"{group}/{place}", prompt, [good], [bad], subset=subset, group=group)


def load_judgebench(path: Path) -> list[Item]:
    """Pairs of which one response is objectively right; the subset is the source of the question."""
    shapes = (
        ("prompt", "chosen", "rejected"),
        ("question", "response_A", "response_B", "label"),
    )
    return read_each(path, "JudgeBench", shapes, _judgebench)


def _judgebench(row: Source) -> Iterator[Item]:
    values = row.values
    id = str(values.get("question_id") or values.get("pair_id") or row.number)
    topic = str(values.get("query_type") or values.get("source") or "")
    # `mmlu-pro-economics` and its like are reported together.
    families = ("mmlu-pro", "livebench-reasoning", "livebench-math", "livecodebench")
    if "chosen" in values:
        prompt = text_of(row, "prompt")
        texts, best, _ = shuffled(id, [text_of(row, "chosen")], [text_of(row, "rejected")])
    else:
        prompt = text_of(row, "question")
        texts = [text_of(row, "response_A"), text_of(row, "response_B")]
        best = label_of(row, "label", {"A>B": FIRST, "B>A": SECOND})
    author = str(values.get("response_model") or "")
    yield posed(
        id,
        prompt,
        texts,
        best,
        next((family for family in families if topic.startswith(family)), topic),
        authors=(author, author) if author else (),
        info={"topic": topic},
        hidden={"reference": values["ground_truth"]} if values.get("ground_truth") else {},
    )


def load_llmbar(path: Path) -> list[Item]:
    """Instruction-following pairs; the published layout is one dataset.json for each subset."""

    def items(row: Source) -> Iterator[Item]:
        # `Adversarial/Manual` of Dataset/LLMBar/Adversarial/Manual/dataset.json.
        folder, parts = row.path.parent, row.path.parent.parts
        if "LLMBar" in parts:
            parts = parts[parts.index("LLMBar") + 1 :]
        else:
            parts = folder.relative_to(path).parts if path.is_dir() else (folder.name,)
        subset = str(row.values.get("subset") or "/".join(parts))
        id = str(row.values.get("id") or f"{subset}-{row.number}")
        texts = [text_of(row, "output_1"), text_of(row, "output_2")]
        best = label_of(row, "label", {"1": FIRST, "2": SECOND})
        yield posed(id, text_of(row, "input"), texts, best, subset)

    return read_each(path, "LLMBar", [("input", "output_1", "output_2", "label")], items)


def load_pandalm(path: Path) -> list[Item]:
    """Pairs with three people's marks each (0 tie, 1, 2); the label is their majority.

    The subset says whether the majority prefers one of the two or finds them equal.
    """
    raters = ("annotator1", "annotator2", "annotator3")
    marks = {"0": TIE, "1": FIRST, "2": SECOND}

    def items(row: Source) -> Iterator[Item]:
        values = row.values
        id = str(values.get("idx", row.number))
        people = tuple(label_of(row, rater, marks) for rater in raters)
        top, votes = Counter(people).most_common(1)[0]
        best = top if votes > 1 else None
        request = text_of(row, "instruction")
        if values.get("input"):
            request = f"{request}\n\n{values['input']}"
        models = tuple(str(values.get("cmp_key") or "").split("_"))
        yield posed(
            id,
            request,
            [text_of(row, "response1"), text_of(row, "response2")],
            best,
            "people disagree" if best is None else "equal" if best == TIE else "one is better",
            authors=models if len(models) == 2 else (),
            people=people,
        )

    return read_each(path, "PandaLM", [("instruction", "response1", "response2", *raters)], items)


def load_alpaca_pairs(path: Path) -> list[Item]:
    """Pairs of model outputs with the preference of AlpacaEval's annotator (1 or 2; 0, 1.5: tie)."""
    known = {"1": FIRST, "2": SECOND, "1.5": TIE, "0": TIE}

    def items(row: Source) -> Iterator[Item]:
        values, label = row.values, row.values["preference"]
        if isinstance(label, float) and 1 < label < 2 and label != 1.5:
            best = FIRST if label < 1.5 else SECOND  # 1.7 is for the nearer one
        else:
            best = label_of(row, "preference", known)
        id = f"{row.path.stem}/{row.number}"
        yield posed(
            id,
            text_of(row, "instruction"),
            [text_of(row, "output_1"), text_of(row, "output_2")],
            best,
            str(values.get("dataset") or ""),
            authors=words_of(row, "generator_1", "generator_2"),
        )

    shape = ("instruction", "output_1", "output_2", "preference")
    return read_each(path, "AlpacaEval annotations", [shape], items)


WRITE = "Write one paragraph of creative writing."
"""The files of LAMP hold the paragraphs and not what their writers were asked for."""


def load_lamp(path: Path) -> list[Item]:
    """Paragraphs before and after a professional's edit, as LAMP asks a judge to compare them.

    Files of the set that score single paragraphs are something else, and left out.
    """

    def items(row: Source) -> Iterator[Item]:
        turns = row.values["messages"]
        asked = [turn["content"] for turn in turns if turn.get("role") == "user"]
        _, _, rest = (asked or [""])[-1].partition("Paragraph 1:\n")
        first, _, rest = rest.partition("\n\nParagraph 2:\n")
        second, end, _ = rest.partition("\n\nYou must produce")
        if end:
            best = {"1": FIRST, "2": SECOND}[str(json.loads(turns[-1]["content"])["preference"])]
            id = f"{row.path.stem}/{row.values.get('id', row.number)}"
            yield posed(id, WRITE, [first.strip(), second.strip()], best)

    found = read_each(path, "LAMP", [("messages",)], items)
    if not found:
        raise UserError(f"{path}: no pair; expected a question about Paragraph 1 and Paragraph 2.")
    return found
