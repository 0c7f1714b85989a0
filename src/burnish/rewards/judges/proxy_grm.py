"""Read a judge that writes a rubric first, and pay it for rubrics that let another judge decide.

    extract_rubric(text)                        # the rubric alone, or None
    accuracy_reward((text, 1))                  # 1.0 or -1.0
    compose(acc=1.0, prox=-1.0)                 # 0.5: right, but the rubric misled the proxy

Proxy-GRM (arXiv 2603.16600): a judge answers with three blocks, `<rubric>` (criteria with weights, then
`<justify>` inside it), `<eval>` and `<answer>` with 1 or 2. Where we differ from the published code: a
rubric without its closing tag is no rubric (the code sends the whole reply, verdict included, to the
proxy), a rubric that names a winner is found (`leaks`), and digits are read as numbers: 10 is not 1.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

from msgspec import Meta

from burnish.arguments import as_list, as_text, read_each, refused
from burnish.boundary import public
from burnish.errors import ArgumentError

_NOUN = r"(?:response|answer|candidate|assistant|text|option|reply|output|solution|completion)"
_VERB = r"(?:is|was|wins?|won|beats|has|seems|looks|appears|should|deserves|clearly|over|than)\b"
_STOP = r"\s*(?:$|[^\w\s])"
_UNIT = (
    r"\s*(?:%|[-–/]\s*\d)|[.,]?\d|\s*(?:to|x|times|percent|(?:full |bonus )?(?:point|mark|star)s?|"
    r"sentences?|words?|sources?|examples?|lines?|pages?|paragraphs?|steps?|facts?|reasons?)\b"
)
_DIGIT = rf"[12](?!{_UNIT})"
# "one" and "A" are also a pronoun and an article: what follows decides.
_LETTER = rf"(?-i:[AB])(?={_STOP}|\s+(?:{_VERB}|\w+(?:s|ly|ed)\b))|(?-i:II?)(?={_STOP}|\s+{_VERB})"
_WHICH = (
    rf"(?:{_DIGIT}|[(\[\"'*]\s*(?:[12ab]|one|two)\s*[)\]\"'*]|\b(?:{_LETTER})"
    rf"|\b(?:one|two)\b(?={_STOP}|\s+{_VERB})|\b[ab](?=\s+(?:is|wins|was|beats)\b))"
)
_NUMBER_SIGN = r"(?:#|no\b\.?|nr\b\.?|number|num\b\.?)?\s*"
_ORDINAL = r"(?:first|second|1st|2nd|former|latter)"
_NAMED = (
    rf"\b(?:{_NOUN}[\s_-]*{_NUMBER_SIGN}{_WHICH}|the\s+{_ORDINAL}\s+(?:{_NOUN}|one)\b"
    # "must first answer the question" names nothing.
    rf"|{_ORDINAL}\s+{_NOUN}\b(?!\s+(?:the|an?|all|every|each|any|what|whether|with|in|to|for)\b))"
)
_GOOD = r"better|best|superior|prefer\w*|winner|stronger|right|correct|chosen"
_BAD = r"worse|worst|inferior|loses|loser|weaker|wrong"
_PICK = r"(?:choose|pick|select|prefer|favou?r|vote\s+for|go\s+with)"
_GAP = r"[^\w.!?;]+"
_BEFORE = r"[\s\"'*_`]*(?:the\s+)?" + _NUMBER_SIGN
_END = r"(?=\s*(?:$|[.!?;,\"'*_`<](?!\s*\d)|(?:because|since|as|over|here)\b))"
_BARE = (
    rf"(?:[(\[]\s*(?:[12ab]|one|two)\s*[)\]]|(?<![\w.,])(?:[12](?!\)|{_UNIT})|(?-i:[AB]|II?)\b|"
    rf"(?:[ab]|{_ORDINAL})\b){_END})"
)
_BARE_OR_WORD = rf"(?:{_BARE}|\b(?:one|two)\b{_END})"  # "choose one" names nothing
_SAID = r"\s*(?:is|are|was|:|=|-+>|→)"
# "Response 1 is more accurate": compared with the other, though no word says which is better.
_COMPARED = (
    r"(?:is|was|seems|looks|appears|sounds|feels)\s+(?:(?:much|far|a\s+lot|clearly|slightly|the)\s+)?"
    r"(?:(?:more|less|most|least)\s+\w+|(?:clear|saf|full|deep|rich|clos|great|neat|clean|poor)(?:er|est))"
)
_LEAK = re.compile(
    rf"{_NAMED}{_GAP}(?:\w+{_GAP}){{0,6}}?(?:{_GOOD}|wins?|{_BAD})\b"
    rf"|{_NAMED}\s+(?:\w+\s+){{0,2}}?{_COMPARED}\b"
    rf"|\b(?:better|best|prefer\w*|choose|pick|select|winner|favou?r|stronger)\b"
    rf"{_GAP}(?:\w+{_GAP}){{0,4}}?{_NAMED}"
    rf"|{_NAMED}\s*(?:>|≻|beats\b|over\b)\s*(?:the\b|{_NOUN}|\w+\b)"
    rf"|\b(?:answer|verdict|winner|choice|label|preferred|result|decision){_SAID}{_BEFORE}{_BARE_OR_WORD}"
    rf"|\b(?:{_GOOD}|{_BAD})(?:\s+(?:{_NOUN}|one|choice))?{_SAID}{_BEFORE}{_BARE_OR_WORD}"
    rf"|\b(?:winner|verdict|{_PICK}){_BEFORE}{_BARE}"
    rf"|(?<![\w.,%])(?:[12]|the\s+{_ORDINAL})\s+(?:(?:is|was|seems|looks)\s+(?:(?:the|much|far|a|"
    rf"\w+ly)\s+){{0,2}}(?:{_GOOD}|{_BAD})\b|wins\b|loses\b|beats\b)"
    r"|(?<!\d)[12]\s*(?:>|≻|beats)\s*[12](?!\d)",
    re.I,
)
# Other languages, without accents: (nouns, ordinals, better or worse, both).
_NEAR = r"[^\w.,;!?:]+"
_FOREIGN = tuple(
    re.compile(
        rf"\b(?:(?:{nouns})\s*(?:#|nr\.?|no\.?)?\s*(?:[12](?!{_UNIT}|\s*(?:punkt|punto))\b|(?-i:[AB])\b)"
        rf"|(?:{ordinals})\s+(?:{nouns})\b){_NEAR}(?:\w+{_NEAR}){{0,4}}?(?:{judged})\b"
        rf"|\b(?:{judged}|{picks})\b{_NEAR}(?:\w+{_NEAR}){{0,3}}?"
        rf"(?:(?:{nouns})\s*(?:[12](?!{_UNIT}|\s*(?:punkt|punto))\b|(?-i:[AB])\b)|(?:{ordinals})\s+(?:{nouns})\b)",
        re.I,
    )
    for nouns, ordinals, judged, picks in (
        (
            "antwort|losung|variante|ausgabe|kandidat|text|option",
            "(?:die|der|den)\\s+(?:erste|zweite)[nr]?",
            "besser\\w*|beste\\w*|schlechter\\w*|schlechteste\\w*|uberlegen\\w*|unterlegen\\w*|gewinnt|"
            "verliert|bevorzug\\w*|genauer|richtig|falsch|vorzuziehen",
            "wahle?n?|nimm|gewinner\\w*",
        ),
        (
            "reponse|solution|texte|option|candidate?",
            "l[ae]\\s+(?:premiere?|seconde?|deuxieme)",
            "meilleure?s?|mieux|pire|superieure?|inferieure?|gagne|perd|prefer\\w*|correcte?|fausse|"
            "plus\\s+(?:precise?|exacte?|claire?|complete?)",
            "choisi\\w*|prends|gagnante?",
        ),
        (
            "respuesta|solucion|texto|opcion|candidat[ao]",
            "(?:la|el)\\s+(?:primer[ao]?|segund[ao])",
            "mejor\\w*|peor\\w*|superior|inferior|gana|pierde|prefer\\w*|correcta|incorrecta|"
            "mas\\s+(?:precis[ao]|exact[ao]|clar[ao]|complet[ao])",
            "elig\\w*|eleg\\w*|escog\\w*|ganador\\w*",
        ),
    )
)
_HAN_ONE = (
    r"(?:(?:回答|答案|回复|回復|响应|選項|选项|文本|候选)\s*(?:[12一二甲乙]|(?-i:[AB]))(?![\w%.]*分)"
    r"|第\s*[12一二]\s*[个個]?\s*(?:回答|答案|回复|回復|响应|选项|選項|文本)?|[前后後]者)"
)
_HAN_JUDGED = r"(?:[更较較最][好优優佳差劣准準]|胜出|勝出|获胜|獲勝|优于|優於|不如|好于|好於|是?正[确確]的|是?[错錯][误誤]的)"
_HAN = re.compile(
    rf"{_HAN_ONE}[^。，！？；.!?;:,\s]{{0,8}}?{_HAN_JUDGED}"
    rf"|(?:{_HAN_JUDGED}的?(?:回答|答案)?是?|[选選][择擇]?|[胜勝]者是?|推荐|推薦)[:：]?\s*{_HAN_ONE}"
)
# What names no response: a list's number, both responses at once, the number of something else.
_BULLET = re.compile(r"^[^\S\n]*+(?:<rubric>)?[^\S\n]*+(?:[-*•]|\(?\w{1,2}[.)])(?=[^\S\n]+(?!is\b|wins\b)\w)", re.M)  # fmt: skip
_PAIR = r"(?:and|or|nor|vs\.?|versus|/|&|und|oder|et|ou|y|o|和|与|與|或)"
_BOTH = re.compile(
    rf"(?<![\w.])(?:1\s*{_PAIR}\s*(?:{_NOUN}\s*)?2|2\s*{_PAIR}\s*(?:{_NOUN}\s*)?1|"
    rf"A\s+{_PAIR}\s+(?:{_NOUN}\s*)?B)\b(?![^.]{0, 80}\brespectively)"
)
_OTHER = re.compile(
    r"\b(?:criteri(?:on|a)|levels?|scores?|step|item|grade|rating|points?|part|rule|section|weight|"
    r"least|most|of|than)\s+(?:of\s+)?#?\d",
    re.I,
)


_LOOK_ALIKE = str.maketrans(
    "аеорсухіѕјԁһԛԝкмтвнгпАВЕЅІЈКМНОРСТУХԚԜαβεικνορτυχωΑΒΕΖΗΙΚΜΝΟΡΤΥΧ",
    "aeopcyxisjdhqwkmtbhrnABESIJKMHOPCTYXQWabeiknoptuxwABEZHIKMNOPTYX",
)
"""Cyrillic and Greek letters that look like Latin ones."""


def leaks(rubric: str) -> list[str]:
    """Sentences of a rubric that name a winner: with these a proxy needs no rubric."""
    return [part for part, is_leak in _sentences(as_text("rubric", rubric)) if is_leak]


def without_leaks(rubric: str) -> str | None:
    """The rubric without such sentences; None where nothing is left."""
    parts = _sentences(as_text("rubric", rubric))
    kept = "".join(part for part, is_leak in parts if not is_leak)
    if not kept.replace("<rubric>", "").replace("</rubric>", "").strip():
        return None
    return f"<rubric>{kept.removeprefix('<rubric>').removesuffix('</rubric>')}</rubric>"


def _sentences(text: str) -> list[tuple[str, bool]]:
    """The sentences in their order, and whether a match reaches into them."""
    folded, places = _folded(text)
    spans = [
        (places[m.start()], places[m.end() - 1] + 1)
        for pattern in (_LEAK, *_FOREIGN, _HAN)
        for m in pattern.finditer(folded)
    ]
    found, start = [], 0
    for part in re.split(r"(?<=[.!?;\n。！？；])", text):
        end = start + len(part)
        if part:
            found.append((part, any(a < end and b > start for a, b in spans)))
        start = end
    return found


def _folded(text: str) -> tuple[str, list[int]]:
    """One form for each digit, letter and white space, and where each character came from."""
    plain: list[str] = []
    places: list[int] = []
    for place, character in enumerate(text):
        if unicodedata.category(character) in ("Mn", "Me", "Cf"):  # invisible, or a frame
            continue
        if character.isspace() and plain and plain[-1].isspace():  # a run would cost its square
            plain[-1] = "\n" if character == "\n" else plain[-1]
            continue
        digit = unicodedata.digit(character, None)
        form = str(digit) if digit is not None else unicodedata.normalize("NFKD", character)
        form = "".join(c for c in form if not unicodedata.combining(c)).translate(_LOOK_ALIKE)
        plain += form
        places += [place] * len(form)
    whole = "".join(plain)
    for pattern, mark in ((_BULLET, ";"), (_BOTH, "_"), (_OTHER, "_")):
        whole = pattern.sub(lambda m, mark=mark: mark * len(m[0]), whole)  # type: ignore[misc]
    return re.sub(r"\s", " ", whole), places


WEIGHTS = (1.0, 1.0, 0.5)
"""Of accuracy, proxy and format."""
Flag = bool | Literal[0, 1]
Sign = Annotated[float, Meta(ge=-1.0, le=1.0)]
_TAGS = [f"<{end}{name}>" for name in ("rubric", "eval", "answer") for end in ("", "/")]
_TAG = re.compile("|".join(_TAGS))
_NUMBER = re.compile(r"(?<!\d)(?<!(?<![^\W\d])[.,/–−-])[12](?![.,/–−-]?\d)")
"""1 or 2 alone: no part of a decimal, a fraction or a range, and not below 0; `no.1` and `response-2` do."""
_OPEN = re.compile(r"<\s*rubric\s*>", re.I)
_CLOSE = re.compile(r"<\s*/\s*rubric\s*>", re.I)
_BLOCK_TAG = re.compile(
    r"<\s*(/?)\s*(?:justif\w*|eval\w*|answer|think|summary|verdict|rubric)\b", re.I
)


Variant = Annotated[int, Meta(ge=0, le=10)]


class Cells(NamedTuple):
    """The score by what was right: verdict and rubric."""

    both: float
    verdict_only: float
    """The verdict is right, the proxy was misled."""
    rubric_only: float
    neither: float


VARIANTS: Mapping[int, Cells] = {
    0: Cells(2.5, 0.5, 0.5, -1.5),
    1: Cells(2.5, -1.5, -1.5, -1.5),
    2: Cells(1.5, -0.5, -0.5, -0.5),
    3: Cells(3.0, 0.0, 0.5, -1.5),
    4: Cells(3.0, 0.0, 0.0, -1.5),
    5: Cells(3.0, 0.0, 0.0, -2.5),
    6: Cells(2.5, 0.0, 0.5, -1.5),
    7: Cells(2.0, 1.0, -0.5, -0.5),
    8: Cells(2.0, 1.0, -1.0, -0.5),
    9: Cells(2.0, 1.0, -1.0, -1.5),
    10: Cells(1.5, 1.0, -0.5, -0.5),
}
"""Published ways to couple verdict and rubric, at good format; 0 is the sum."""


class PairRow(TypedDict):
    """A row of a benchmark of pairs; other keys are its own."""

    rewards: Annotated[list[float], Meta(min_length=2)]
    """Of the first and of the second response."""
    id: NotRequired[object]


def format_ok(texts: Any, *, strict: bool = True) -> Any:
    """True where a reply is exactly a rubric, an evaluation and an answer block, each once.

    Line feeds do not count. `strict=False` also allows white space between and around the blocks.
    Takes a text or a list of texts.
    """

    def read(text: str) -> bool:
        text = text.strip() if not strict else text
        text = text.replace("\n", "")
        if text.count("<rubric") != 1 or _TAG.findall(text) != _TAGS:
            return False
        before, _, gap, _, next_gap, _, after = _TAG.split(text)
        between = gap + next_gap
        return not (before or after or (between if strict else between.strip()))

    return read_each("texts", texts, read)


def accuracy_reward(cases: Any, *, lenient: bool = True) -> Any:
    """1.0 where the answer block names the label and not the other, else -1.0.

    A case is (text, label) or a mapping with these two; a list of cases gives a list. The label is 1
    or 2, also inside an answer tag. Without an answer block the whole text is read, as published;
    `lenient=False` says -1 then, so that leaving the block out is never paid.
    """

    def read(text: str, label: int) -> float:
        block = _answer(text)
        if block is None and not lenient:
            return -1.0
        named = {int(digit) for digit in _NUMBER.findall(text if block is None else block)}
        return 1.0 if named == {label} else -1.0

    return _each_case(cases, read)


def proxy_reward(cases: Any) -> Any:
    """1.0 where a proxy's reply names the label, else -1.0; cases as for `accuracy_reward`.

    Its answer block counts, which may name one response only; without one the last 1 or 2 of the
    text. A proxy that gave no reply has no reward: do not ask for one.
    """
    return _each_case(cases, lambda text, label: 1.0 if proxy_choice(text) == label else -1.0)


@public
def proxy_choice(text: str) -> int | None:
    """1 or 2, as a proxy's reply names it; None where it names both or none."""
    block = _answer(text)
    named = [int(digit) for digit in _NUMBER.findall(text if block is None else block)]
    if block is None:
        return named[-1] if named else None
    return named[0] if len(set(named)) == 1 else None


def _answer(text: str) -> str | None:
    """What the first answer block holds; None without one. One look, however many tags there are."""
    start = text.find("<answer>")
    end = -1 if start < 0 else text.find("</answer>", start)
    return None if end < 0 else text[start + len("<answer>") : end]


@public
def extract_rubric(text: str | None) -> str | None:
    """The rubric block without its justification, tags included; None where there is none.

    It begins at the opening tag and ends at the first closing one, and stops before any other block,
    so that no evaluation, justification or answer is in it. Without a closing tag, with a block that
    only closes inside it, or with nothing in it there is no rubric.
    """
    text = text or ""
    start = _OPEN.search(text)
    end = None if start is None else _CLOSE.search(text, start.end())
    if start is None or end is None:
        return None
    body = text[start.end() : end.start()]
    other = _BLOCK_TAG.search(body)
    if other is not None and other[1]:  # a block that ends here began before: its words are inside
        return None
    body = body[: other.start()] if other else body
    return f"<rubric>{body}</rubric>" if body.strip() else None


@public
def weights_ok(rubric: str) -> bool:
    """True where the percentages of a rubric add up to 100."""
    # From the first digit of a number on: a reply of digits alone would cost its square.
    found = re.findall(r"(?<!\d)(\d+(?:\.\d+)?)\s*%", rubric)
    return bool(found) and abs(sum(map(float, found)) - 100) < 0.5


@public
def compose(
    mode: Literal["additive", "no_proxy"] = "additive",
    format_ok: Flag = True,
    weights: tuple[float, float, float] = WEIGHTS,
    *,
    acc: Sign | None = None,
    prox: Sign | None = None,
) -> Any:
    """`w_a acc + w_p prox + w_f format`; without `acc` the four cells of (verdict, rubric).

    `acc` and `prox` are 1 or -1. A `prox` of None is missing and adds nothing, and so does every
    one with `mode="no_proxy"`, the outcome alone.
    """
    for_acc, for_prox, for_format = weights
    for_prox = for_prox if mode == "additive" else 0.0
    base = for_format if format_ok else 0.0
    if acc is None and prox is None:
        signs = ((1.0, 1.0), (1.0, -1.0), (-1.0, 1.0), (-1.0, -1.0))
        return Cells(*(for_acc * a + for_prox * p + base for a, p in signs))
    if acc is None:
        raise ArgumentError("acc: got none beside prox, expected 1 (right) or -1 (wrong)")
    return for_acc * acc + for_prox * (prox or 0.0) + base


@public
def compose_variants(
    format_ok: Flag = True, variant_ids: Variant | Sequence[Variant] = tuple(VARIANTS)
) -> Any:
    """The four cells of the published variants, 0 to 10, by id; one id gives its cells alone."""
    lost = 0.0 if format_ok else WEIGHTS[2]
    ids = [variant_ids] if isinstance(variant_ids, int) else variant_ids
    found = {one: Cells(*(cell - lost for cell in VARIANTS[one])) for one in ids}
    return found[variant_ids] if isinstance(variant_ids, int) else found


@public
def variant_score(variant: Variant, acc: Sign, prox: Sign | None, format_ok: Flag = True) -> float:
    """One cell of a variant; without a proxy the outcome and the format alone."""
    if prox is None:
        return acc + (WEIGHTS[2] if format_ok else 0.0)
    cells: Cells = compose_variants.plain(format_ok, variant)
    return cells[2 * (acc < 0) + (prox < 0)]


# Benchmarks: rows {id, rewards: [first, second], reverse}; the first response is the better one,
# or the second where `reverse` is set. An unparsed verdict is [0, 0]: wrong, never a choice.


@public
def vl_rewardbench(rows: Sequence[PairRow], *, any_case: bool = False) -> dict[str, float | None]:
    """Accuracy of VL-RewardBench by category, over all rows (`micro`) and of categories (`macro`).

    The category follows from the id as published, in small letters. The benchmark's own file has ids
    such as `RLAIF-V-14`, which that rule counts as general: `any_case` reads them too.
    """
    marks: dict[str, list[bool]] = {"reasoning": [], "hallucination": [], "general": []}
    for row in rows:
        marks[vl_category.plain(str(row.get("id", "")), any_case=any_case)].append(_is_right(row))
    found: dict[str, float | None] = {name: _mean(hits) for name, hits in marks.items()}
    present = [value for value in found.values() if value is not None]
    every = [hit for hits in marks.values() for hit in hits]
    return {**found, "micro": _mean(every), "macro": _mean(present)}


@public
def vl_category(id: str, *, any_case: bool = True) -> str:
    """reasoning, hallucination or general, by what the id of a VL-RewardBench row holds.

    >>> vl_category("RLAIF-V-14"), vl_category("RLAIF-V-14", any_case=False)
    ('hallucination', 'general')
    """
    name = id.lower() if any_case else id
    if "mmmu" in name or "mathverse" in name:
        return "reasoning"
    is_hallucination = any(word in name for word in ("hallucination", "rlhf", "rlaif"))
    return "hallucination" if is_hallucination else "general"


@public
def mm_rlhf(rows: Sequence[PairRow]) -> dict[str, Any]:
    """MM-RLHF's `acc` over pairs and `acc_plus`, the share of ids whose pairs are all right.

    `categories` has both for mcq, long, short, safety and video, by the media path of an id.
    """
    by_id: dict[str, list[bool]] = {}
    media: dict[str, str] = {}
    for row in rows:
        if row.get("id") in (None, ""):
            raise refused(
                "rows: id", row.get("id"), "the id of each row; pairs of one id count as one"
            )
        name = str(row["id"])
        by_id.setdefault(name, []).append(_is_right(row))
        media.setdefault(name, str(row.get("image") or row.get("video") or "").lower())

    def of(ids: Sequence[str]) -> dict[str, float | None]:
        hits = [hit for name in ids for hit in by_id[name]]
        return {"acc": _mean(hits), "acc_plus": _mean([all(by_id[name]) for name in ids])}

    kinds = ("mcq", "long", "short", "safety", "video")
    kind_of = {name: next((k for k in kinds if k in path), None) for name, path in media.items()}
    categories = {k: of([name for name in by_id if kind_of[name] == k]) for k in kinds}
    return {**of(list(by_id)), "categories": categories}


def mmrb_group(rows: Any) -> Any:
    """The group of a Multimodal RewardBench row, as its macro average counts it; a list gives a list."""
    if isinstance(rows, Mapping):
        category = str(rows.get("Category", rows.get("category", "unknown"))).lower()
        name = str(rows.get("id", "")).lower()
        if category == "safety":
            return "safety/bias" if name.startswith("pairs") else "safety/toxicity"
        if category == "reasoning":
            return "reasoning/math" if name.startswith("math") else "reasoning/coding"
        return category
    return [mmrb_group(row) for row in as_list("rows", rows)]


@public
def multimodal_rewardbench(rows: Sequence[PairRow]) -> dict[str, Any]:
    """Accuracy of Multimodal RewardBench over all rows (`micro`), and of its groups (`macro`).

    `groups` are those of `mmrb_group`. The published macro average counts "all" as one more group;
    ours does not.

    >>> rows = [{"id": "math_1", "Category": "reasoning", "rewards": [1, 0]}]
    >>> multimodal_rewardbench(rows)["groups"]
    {'reasoning/math': 1.0}
    """
    marks: dict[str, list[bool]] = {}
    for row in rows:
        marks.setdefault(mmrb_group(row), []).append(_is_right(row))
    groups = {name: fmean(hits) for name, hits in sorted(marks.items())}
    every = [hit for hits in marks.values() for hit in hits]
    return {"groups": groups, "micro": _mean(every), "macro": _mean(list(groups.values()))}


def _each_case(cases: Any, read: Any) -> Any:
    is_pair = isinstance(cases, list | tuple) and len(cases) == 2 and isinstance(cases[0], str)
    if isinstance(cases, Mapping):
        text = next((cases[key] for key in ("text", "output", "response") if key in cases), None)
        label = cases.get("label", cases.get("answer"))
    elif is_pair:
        text, label = cases
    else:
        return [_each_case(case, read) for case in as_list("cases", cases)]
    return read(as_text("cases: text", text), _label(label))


def _label(label: Any) -> int:
    """1 or 2, as a number, a text or inside an answer tag."""
    if isinstance(label, str):
        block = _answer(label)
        said = (label if block is None else block).strip()
        label = int(said) if said in ("1", "2") else label
    if isinstance(label, bool) or label not in (1, 2):
        raise refused("cases: label", label, "1 or 2")
    return int(label)


def _is_right(row: Mapping[str, Any]) -> bool:
    first, second = row["rewards"][:2]
    return bool(second > first if row.get("reverse") else first > second)


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
