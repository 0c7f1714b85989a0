"""Meta-rubrics: the written principles that a judge turns into criteria for one pair (OpenRS).

A meta-rubric is a Markdown file that people edit: front matter with the domain, the language and
the names by which a dataset may call the domain, a preface, and items under the four types. The
general rubric holds for every request; a domain's rubric adds to it (`library`).

Verdicts on single criteria become one score outside of the language model: a decided critical flaw
silences everything else; without one the score is the mean of the decided criteria, weighted by their
type. Where we differ from the reference code: what cannot be read is None and not 0 (`parity=True` gives
the 0), and a winner that contradicts the sign of its score is counted.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from msgspec import Struct
from msgspec.structs import replace

from burnish.arguments import as_word
from burnish.boundary import NonNegative, public
from burnish.errors import ArgumentError, UserError, did_you_mean
from burnish.numbers import plain
from burnish.rewards.judges.prompting import Unreadable, fill, wording
from burnish.rewards.judges.reading import (
    Maybe,
    Table,
    anything,
    free_table,
    loose_text,
    marked_object,
    rows,
)
from burnish.seeds import digest

logger = logging.getLogger(__name__)

TYPES = ("critical", "core", "important", "highlight")
ALIASES = dict(zip((*TYPES, "硬伤", "核心", "重要", "亮点"), TYPES * 2, strict=True))
WEIGHTS = {"core": 5.0, "important": 2.0, "highlight": 1.0}
LARGEST = 2.0
"""A criterion's score is from -2 to 2; what is beyond it keeps to another scale."""
EPSILON = 1e-6
"""In the denominator of the weighted mean, as in the reference code: |mean| stays below 2."""

_LETTERS = {"A": 1, "B": -1, "S": 0, "SAME": 0, "TIE": 0, "EQUAL": 0}


class Compared(NamedTuple):
    """One criterion of a pair, read: who is better on it, and by how much."""

    type: str
    """One of the four types; any other word as it came."""
    sign: int
    """1: A is better, -1: B is, 0: neither."""
    score: float
    """As it was given; its size counts, `sign` says which way."""

    @property
    def signed(self) -> float:
        return self.sign * abs(self.score)


@dataclass(frozen=True)
class Aggregate:
    """A score and how it came about."""

    value: float | None
    decided_by: Literal["critical", "weighted", "nothing", "invalid"]
    inconsistent: int = 0
    """Criteria whose letter contradicts their score; the letter won."""
    unknown_types: tuple[str, ...] = ()
    reason: str = ""
    """Why there is no value."""


@public
def aggregate_criteria(
    criteria: object,
    min_score: NonNegative = 0.0,
    *,
    weights: Mapping[str, NonNegative] | None = None,
    strict: bool = False,
    fallthrough: bool = False,
    parity: bool = False,
) -> Any:
    """The score of A against B from criterion verdicts: above 0 where A is better.

    `criteria`: tables with `type`, `winner` (A, B or S; `chosen` as in the reference code) and
    `score` from -2 to 2; a list of such lists gives a list of scores. None where a criterion cannot
    be read or its score is out of range.

    `min_score`: smaller scores become 0. `weights` by type, for replays. `strict`: a critical
    criterion with winner S is undecided, whatever its score. `fallthrough`: critical flaws that
    cancel out leave the decision to the rest. `parity`: the reference code to the letter, where
    what cannot be read is 0, scores have no bounds and are cut to whole numbers, and a tied criterion
    with a score dilutes the mean.
    """
    value_of = partial(
        explain_criteria.plain,
        min_score=min_score,
        weights=weights,
        strict=strict,
        fallthrough=fallthrough,
        parity=parity,
    )
    if isinstance(criteria, list | tuple) and criteria and isinstance(criteria[0], list | tuple):
        return [value_of(one).value for one in criteria]
    return value_of(criteria).value


@public
def explain_criteria(
    criteria: object,
    min_score: NonNegative = 0.0,
    *,
    weights: Mapping[str, NonNegative] | None = None,
    strict: bool = False,
    fallthrough: bool = False,
    parity: bool = False,
) -> Aggregate:
    """`aggregate_criteria` for one pair, with what decided and what was odd."""
    known = {type_of(word): weight for word, weight in (weights or {}).items()}
    table = WEIGHTS | {as_word("weights", word, WEIGHTS): known[word] for word in known}
    listed = criteria.get("rubric_compares") if isinstance(criteria, Mapping) else criteria
    try:
        if not isinstance(listed, list | tuple):
            raise Unreadable(f"expected a list of criteria, got {type(listed).__name__}")
        bound = math.inf if parity else LARGEST
        read = [read_criterion(item, place, bound) for place, item in enumerate(listed)]
    except Unreadable as error:
        return Aggregate(0.0 if parity else None, "invalid", reason=str(error))
    if parity:
        read = [c._replace(score=float(math.trunc(c.score))) for c in read]
    unknown = tuple(dict.fromkeys(c.type for c in read if c.type not in TYPES))
    if unknown:
        logger.warning("criteria of unknown type are left out: %s", ", ".join(unknown))
    # The letter and the sign of the score name different winners.
    inconsistent = sum(c.score != 0 and c.sign != math.copysign(1, c.score) for c in read)

    flaws = [c for c in read if c.type == "critical" and (c.signed if strict else c.score) != 0]
    total = math.fsum(c.signed for c in flaws)
    by: Literal["critical", "weighted", "nothing"]
    if flaws and not (fallthrough and total == 0):
        by, value = "critical", total
    else:
        rest = [c for c in read if c.type in table and (c.score if parity else c.signed) != 0]
        weight = math.fsum(table[c.type] for c in rest)
        score = math.fsum(table[c.type] * c.signed for c in rest)
        by, value = ("weighted", score / (weight + EPSILON)) if weight > 0 else ("nothing", 0.0)
    if abs(value) < min_score:
        value = 0.0
    return Aggregate(value + 0.0, by, inconsistent, unknown)


def read_criterion(item: Any, place: int = 0, largest: float = LARGEST) -> Compared:
    """One criterion from its table; `Unreadable` says what is missing."""
    found = item if isinstance(item, Mapping) else {}
    letter = found.get("winner", found.get("chosen"))
    sign = _LETTERS.get(letter.strip().upper()) if isinstance(letter, str) else None
    score = number_in(found.get("score"))
    if sign is None or score is None or abs(score) > largest:
        told = f"expected a score from -2 to 2, got {found.get('score')!r:.40}"
        if sign is None:
            told = f"expected winner A, B or S, got {letter!r:.40}"
        raise Unreadable(f"criterion {place + 1}: {told}")
    return Compared(type_of(found.get("type")), sign, score)


def type_of(word: Any) -> str:
    """The type that a word names, in English or Chinese; `important` where there is none."""
    text = str(word).strip() if word is not None else ""
    return ALIASES.get(text.lower(), text) or "important"


def number_in(value: Any) -> float | None:
    """A finite number, also as text or as a 0-d array; None for anything else."""
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


# The rubrics.

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = ("en", "zh")
GENERAL = "general"

_HEAD = ("domain", "language", "names")
_FORMS = (
    f"{', '.join(_HEAD)} in the head, then a heading '## TYPE' of {', '.join(TYPES)} (硬伤, 核心, 重要, 亮点), "
    "and below it '- **Title**: what to look at'"
)
_ITEM = re.compile(r"- \*\*(?P<title>[^*\n]+?)\*\*\s*[:：]\s*(?P<text>.+)")


class Item(Struct, frozen=True):
    """One principle: what to look at, and how much a difference there weighs."""

    type: str
    title: str
    text: str

    def render(self) -> str:
        return f"- **{self.title}**: {self.text}"


class Change(Struct, frozen=True, omit_defaults=True):
    """One difference between two rubrics; `before` or `after` is None where there is none."""

    kind: Literal["add", "delete", "modify"]
    before: Item | None = None
    after: Item | None = None

    def __str__(self) -> str:
        sides = (("-", self.before), ("+", self.after))
        return "\n".join(f"{s} [{i.type}] {i.title}: {i.text}" for s, i in sides if i is not None)


class MetaRubric(Struct, frozen=True, omit_defaults=True):
    """Principles for one domain, in one language."""

    items: tuple[Item, ...]
    domain: str = GENERAL
    language: Language = "en"
    names: tuple[str, ...] = ()
    """What datasets call this domain, in any language."""
    preface: str = ""

    @property
    def hash(self) -> str:
        return digest(self.render())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The rubric of a file; a mistake in it is told with its line."""
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: cannot read the rubric: {error}") from None
        return cls.parse(text, str(path))

    @classmethod
    def parse(cls, text: str, where: str = "rubric") -> Self:
        lines = [line.strip() for line in text.splitlines()]
        if lines[:1] != ["---"] or "---" not in lines[1:]:
            raise UserError(f"{where}:1: expected '---', then domain and language, then '---'.")
        start = lines.index("---", 1)
        head: dict[str, Any] = {}
        preface: list[str] = []
        items: list[Item] = []
        kind = ""
        for number, line in enumerate(lines[1:], 2):
            key, _, value = (part.strip() for part in line.partition(":"))
            item = _ITEM.fullmatch(line)
            if number <= start and key in _HEAD:
                names = (name.strip() for name in re.split("[,，、]", value))
                head[key] = tuple(filter(None, names)) if key == "names" else value
            elif line.startswith("## ") and type_of(line[3:]) in TYPES:
                kind = type_of(line[3:])
            elif kind and item is not None:
                items.append(Item(kind, item["title"].strip(), item["text"].strip()))
            elif line and (number <= start or kind or line.startswith("## ")):
                hint = did_you_mean(key.removeprefix("## ").lower(), (*_HEAD, *TYPES))
                raise UserError(f"{where}:{number}: got '{line[:60]}'; expected {_FORMS}.{hint}")
            elif line != "---" and not line.startswith("# "):
                preface += [line] * bool(line)
        rubric = cls(tuple(items), preface="\n".join(preface), **head)
        rubric.validate(where)
        return rubric

    def validate(self, where: str = "rubric") -> None:
        """Raise one line about the first thing that is wrong."""
        as_word(f"{where}: language", self.language, LANGUAGES)
        titles = [name_key(item.title) for item in self.items]
        for item in self.items:
            is_own = titles.count(name_key(item.title)) == 1 and "\n" not in item.title + item.text
            if item.type not in TYPES or not (item.title.strip() and item.text.strip() and is_own):
                raise ArgumentError(
                    f"{where}: item '{item.title}' of type '{item.type}'; expected one of "
                    f"{', '.join(TYPES)}, a title of its own and a text, each on one line."
                )

    def render(self) -> str:
        """The file's text, items in the order of their types; parsing it gives the same items."""
        head = [f"domain: {self.domain}", f"language: {self.language}"]
        head += [f"names: {', '.join(self.names)}"] if self.names else []
        return "\n".join(["---", *head, "---", "", self.as_prompt(), ""])

    def as_prompt(self) -> str:
        """What a judge reads: preface and items, without the front matter."""
        blocks = [self.preface] if self.preface else []
        for kind in TYPES:
            lines = [item.render() for item in self.items if item.type == kind]
            blocks += ["\n".join([f"## {kind}", *lines])] if lines else []
        return "\n\n".join(blocks)

    def diff(self, other: MetaRubric) -> list[Change]:
        """What leads from this rubric to the other, item by item (matched by title)."""
        mine = {name_key(item.title): item for item in self.items}
        theirs = {name_key(item.title): item for item in other.items}
        changes = [Change("delete", item) for key, item in mine.items() if key not in theirs]
        for key, item in theirs.items():
            if item != mine.get(key):
                changes.append(Change("modify" if key in mine else "add", mine.get(key), item))
        return changes

    def applied(self, change: Change) -> MetaRubric:
        """This rubric with one change; a `ValueError` says why it does not fit."""
        keys = [name_key(item.title) for item in self.items]
        items, place = list(self.items), len(self.items)
        if change.before is not None:
            if name_key(change.before.title) not in keys:
                raise ValueError(f"there is no item '{change.before.title}'")
            place = keys.index(name_key(change.before.title))
        items[place : place + 1] = [change.after] if change.after is not None else []
        changed = replace(self, items=tuple(items))
        changed.validate()
        return changed

    def joined(self, other: MetaRubric) -> MetaRubric:
        """Both rubrics as one; an item of `other` replaces one of the same title here."""
        own = {name_key(item.title): item for item in (*self.items, *other.items)}
        preface = "\n".join(text for text in (self.preface, other.preface) if text)
        return replace(other, items=tuple(own.values()), preface=preface)


def name_key(name: str) -> str:
    """The form in which names are compared: case, blanks and dashes do not count."""
    return " ".join(re.split(r"[\s_/-]+", name.strip().casefold()))


SHIPPED = Path(__file__).parent / "rubrics"

_CJK = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]")
_KANA_OR_HANGUL = re.compile(r"[\u3040-\u30ff\uac00-\ud7af]")


class RubricLibrary:
    """Rubrics by domain and language."""

    def __init__(self, rubrics: Iterable[MetaRubric]) -> None:
        self.rubrics = {(rubric.domain, rubric.language): rubric for rubric in rubrics}
        self._domains: dict[str, str] = {}
        for rubric in self.rubrics.values():
            for name in (rubric.domain, *rubric.names):
                known = self._domains.setdefault(name_key(name), rubric.domain)
                if known != rubric.domain:
                    raise UserError(
                        f"'{name}' names the domains '{known}' and '{rubric.domain}'; expected one."
                    )

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Every `*.md` of a folder."""
        files = sorted(Path(folder).glob("*.md"))
        if not files:
            raise UserError(f"{folder}: no rubric here; expected files such as general.en.md.")
        return cls(MetaRubric.load(file) for file in files)

    @classmethod
    @cache
    def shipped(cls) -> Self:
        """The rubrics of this package, read once."""
        return cls.load(SHIPPED)

    @property
    def hash(self) -> str:
        return digest(*(self.rubrics[key].render() for key in sorted(self.rubrics)))

    @property
    def domains(self) -> list[str]:
        return sorted({domain for domain, _ in self.rubrics})

    def domain_of(self, name: str) -> str | None:
        """The domain that a dataset's word stands for, in English or Chinese; None if unknown.

        `mmlu-pro-math` and the like are found by their longest known word.
        """
        whole = name_key(name)
        words = [
            known
            for known in self._domains
            if f" {known} " in f" {whole} " or (_CJK.search(known) and known in whole)
        ]
        return self._domains[max(words, key=len)] if words else None

    def with_rubric(self, rubric: MetaRubric) -> RubricLibrary:
        """The library with one rubric in the place of its namesake."""
        return RubricLibrary({**self.rubrics, (rubric.domain, rubric.language): rubric}.values())

    def for_request(
        self, request: str, domain: str = "", language: Language | None = None
    ) -> MetaRubric:
        """The general rubric and, where there is one, that of the domain, in one language."""
        spoken = language or language_of(request)
        if (GENERAL, spoken) not in self.rubrics:
            spoken = next((lang for dom, lang in self.rubrics if dom == GENERAL), spoken)
        known = self.domain_of(domain) if domain else None
        parts = [
            self.rubrics[key]
            for key in dict.fromkeys([(GENERAL, spoken), (known or GENERAL, spoken)])
            if key in self.rubrics
        ]
        if not parts:
            raise UserError(
                f"no rubric for language '{spoken}'; the library has {', '.join(self.domains)}."
            )
        return parts[0] if len(parts) == 1 else parts[0].joined(parts[1])


def language_of(text: str) -> Language:
    """`zh` where at least a fifth of the letters are Chinese characters, else `en`.

    Characters that stand among Japanese or Korean letters do not make a text Chinese.
    """
    chinese = len(_CJK.findall(text))
    others = len(_KANA_OR_HANGUL.findall(text))
    letters = sum(letter.isalpha() for letter in text)
    return "zh" if chinese > 5 * others and 5 * chinese >= letters > 0 else "en"


FOLDER = Path(__file__).parent / "prompts"


def prompt(name: str, language: Language, mark: str, **values: str) -> str:
    """A shipped prompt with its blanks filled in one pass."""
    return fill(wording(f"{name}.{language}", FOLDER), {**values, "mark": mark})


@cache
def templates_hash() -> str:
    """Changes with any prompt."""
    return digest(*(file.read_bytes() for file in sorted(FOLDER.glob("*.txt"))))


ASKED, MOST = 5, 15
"""Criteria that the prompt asks for, and that a reply may have."""

_LETTER = {1: "A", -1: "B", 0: "S"}


class Analysis(Struct, frozen=True, omit_defaults=True):
    """What the request is, before any response is looked at."""

    analysis: str
    question_type: str = ""
    primary_need: str = ""
    secondary_needs: tuple[str, ...] = ()
    user_context: str = ""


class Comparison(Struct, frozen=True, omit_defaults=True):
    """One criterion and how the two responses compare on it."""

    title: str
    type: str
    winner: str
    """A, B, or S for the same."""
    score: float
    evidence: str = ""
    """The words that show it."""
    reason: str = ""
    description: str = ""

    def mirrored(self) -> Comparison:
        """The same, seen with the responses exchanged."""
        mirror = {"A": "B", "B": "A"}
        return replace(self, winner=mirror.get(self.winner, "S"), score=-self.score + 0.0)


class Judgement(Struct, frozen=True):
    analysis: Analysis
    criteria: tuple[Comparison, ...]


def read_comparison(reply: str, mark: str | None = None) -> Judgement:
    """The judgement of a reply; `Unreadable` names the first rule that it breaks."""
    table = marked_object(reply, mark)
    keys = [key for key in table if key in ("question_analysis", "rubric_compares")]
    if keys == ["rubric_compares", "question_analysis"]:
        raise Unreadable("expected question_analysis before rubric_compares: analyse, then decide")
    return _JUDGEMENT.read(table)


def _analysis(key: str, value: Any) -> Analysis:
    found = _ANALYSIS.read(value if isinstance(value, Mapping) else {"analysis": value})
    if not found.analysis:
        raise Unreadable(f'expected "{key}" to hold a text "analysis"')
    return found


def _needs(key: str, value: Any) -> tuple[str, ...]:
    return tuple(loose_text(key, one) for one in (value if isinstance(value, list) else [value]))


def _judgement(
    question_analysis: Analysis,
    rubric_list: Sequence[Mapping[str, Any]],
    rubric_compares: Sequence[Mapping[str, Any]],
) -> Judgement:
    if not 1 <= len(rubric_compares) <= MOST:
        raise Unreadable(f"expected 1 to {MOST} criteria, got {len(rubric_compares)}")
    planned = {item["title"]: item for item in rubric_list}
    criteria = (_comparison(item, n, planned) for n, item in enumerate(rubric_compares))
    return Judgement(question_analysis, tuple(criteria))


_LOOSE = Maybe(loose_text)
_CRITERION = free_table(
    *("title", "evidence", "reason", "description"),
    **dict.fromkeys(("type", "winner", "chosen", "score"), anything),
)
_ANALYSIS = Table(
    Analysis,
    open=True,
    analysis=loose_text,
    question_type=_LOOSE,
    primary_need=_LOOSE,
    secondary_needs=Maybe(_needs, ()),
    user_context=_LOOSE,
)
_JUDGEMENT = Table(
    _judgement,
    open=True,
    question_analysis=_analysis,
    rubric_list=Maybe(rows(_CRITERION), ()),
    rubric_compares=rows(_CRITERION),
)


def _comparison(
    item: Mapping[str, Any], place: int, planned: Mapping[str, Mapping[str, Any]]
) -> Comparison:
    # Replies to the reference code's prompt say `chosen` for the winner.
    read = read_criterion({**item, "winner": item["winner"] or item["chosen"]}, place)
    if not item["title"] or (read.signed != 0 and not item["evidence"]):
        raise Unreadable(
            f"criterion {place + 1}: expected a title, and a quotation as evidence, got none"
        )
    plan = planned.get(item["title"], {})
    return Comparison(
        item["title"],
        type_of(item["type"] or plan.get("type")),
        _LETTER[read.sign],
        read.score,
        item["evidence"],
        item["reason"],
        item["description"] or plan.get("description", ""),
    )
