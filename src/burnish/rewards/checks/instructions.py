"""Does the response obey the instructions that a machine can check? The 25 of IFEval, strictly.

Zhou et al. 2023, "Instruction-Following Evaluation for Large Language Models". Value 1 or 0 (all
or nothing), or the share obeyed; one verdict with a reason for each instruction either way.

The rules give what the published checker gives, its surprises included (`**Then` is not the word
`then`, what is both bold and italic counts twice). docs/judging.md lists what still differs: keywords
are literal text, sentences and words in capitals are cut without NLTK's data, and language detection
abstains where it cannot tell instead of passing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

from burnish.arguments import as_word
from burnish.boundary import Call, Reader, Seconds, Share, argument_types, reader
from burnish.errors import UserError
from burnish.records import Evidence, Response, Reward, Status, Task, Verdict, Visibility
from burnish.rewards.checks.base import CheckConfig, IsolatedCheck
from burnish.rewards.checks.extract import short
from burnish.rewards.checks.language import DETECT, READ, LanguageCode, is_language
from burnish.rewards.checks.texts import sentences
from burnish.rewards.pool import Outcome


class InstructionsConfig(CheckConfig, frozen=True, tag="instructions"):
    """Every instruction of the task is obeyed: 1, else 0; with `mean`, the share obeyed."""

    mode: Literal["all", "mean"] = "all"
    """`all`: 1 where every instruction is obeyed; `mean`: the share obeyed."""
    confidence: Share = 0.5
    """Least probability at which a detected language counts."""
    timeout_s: Seconds = 5.0
    """Seconds of computing for one response."""


class Instruction(NamedTuple):
    id: str
    arguments: dict[str, Any]


class Instructions(IsolatedCheck[InstructionsConfig]):
    """Checks each instruction; only language detection leaves this process."""

    child = DETECT

    needs = frozenset({"instruction_id_list", "kwargs"})
    """Names of the instructions; a table of arguments each, as a list or as JSON text."""

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        ids = task.fields.get("instruction_id_list") or []
        try:
            instructions = read_instructions(ids, task.fields.get("kwargs") or [{}] * len(ids))
        except UserError as error:
            raise UserError(f"task {task.id}: {error}") from None
        if not instructions:
            return [self.abstained("the task has no instructions")] * len(responses)
        guesses: list[Outcome | None] = [None] * len(responses)
        if any(instruction.id in LANGUAGE_OF for instruction in instructions):
            # Capitals hide the language from a detector trained on running text.
            jobs = [{"text": response.text[:READ].lower()} for response in responses]
            guesses = list(await self.isolated(jobs))
        return [
            self._judge(instructions, response, guess)
            for response, guess in zip(responses, guesses, strict=True)
        ]

    def _judge(
        self, instructions: list[Instruction], response: Response, guess: Outcome | None
    ) -> Reward:
        verdicts: list[Verdict] = []
        evidence: list[Evidence] = []
        failed: Outcome | None = None
        for position, instruction in enumerate(instructions):
            ruling = check_instruction(response.text, *instruction)
            if ruling.obeyed and instruction.id in LANGUAGE_OF and guess is not None:
                ruling = self._language(instruction, guess)
                failed = guess if guess.status is not Status.OK else failed
            value = None if ruling.obeyed is None else float(ruling.obeyed)
            saw = f"{instruction.id}: {ruling.saw}"
            evidence.append(Evidence(self.name, saw, Visibility.BENCHMARK))
            verdicts.append(Verdict(instruction.id, value, evidence=(position,), reason=ruling.saw))
        return self._combine(verdicts, evidence, failed)

    def _language(self, instruction: Instruction, guess: Outcome) -> Ruling:
        wanted = LANGUAGE_OF[instruction.id] or instruction.arguments["language"]
        if guess.status is not Status.OK:
            return Ruling(None, f"the language could not be detected: {guess.reason}")
        found, probability = guess.value["language"], guess.value["probability"]
        if probability < self.config.confidence:
            return Ruling(None, "the language cannot be told from this text")
        saw = f"looks like '{found}' ({probability:.2f}); wanted '{wanted}'"
        return Ruling(is_language(found, wanted), saw)

    def _combine(
        self, verdicts: list[Verdict], evidence: list[Evidence], failed: Outcome | None
    ) -> Reward:
        more: dict[str, Any] = {"verdicts": tuple(verdicts), "evidence": tuple(evidence)}
        values = [verdict.value for verdict in verdicts]
        decided = [value for value in values if value is not None]
        if self.config.mode == "all" and 0.0 in decided:
            return Reward(self.name, 0.0, **more)
        if len(decided) < len(values):
            open_ones = ", ".join(v.criterion for v in verdicts if v.value is None)
            status = failed.status if failed else Status.ABSTAIN
            return Reward.failed(self.name, status, f"undecided: {open_ones}", **more)
        return Reward(self.name, sum(decided) / len(decided), **more)


def read_instructions(ids: Sequence[str], arguments: Any) -> list[Instruction]:
    """Instructions with their arguments, checked against what each id takes.

    Arguments that are None count as absent, as in the published tables.
    """
    try:
        tables = json.loads(arguments) if isinstance(arguments, str) else arguments
        pairs = list(zip(ids, tables, strict=True))
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(
            f"arguments of {len(ids)} instructions: got {arguments!r:.80}, expected a table each ({error})"
        ) from None
    return [_instruction(name, table or {}) for name, table in pairs]


def _instruction(name: str, table: dict[str, Any]) -> Instruction:
    as_word("instruction", name, RULES)
    given = {key: value for key, value in table.items() if value is not None}
    kinds = _kinds(name)
    if set(given) != set(kinds):
        raise UserError(
            f"instruction '{name}' got arguments {sorted(given)}; expected {sorted(kinds)}."
        )
    read = {
        key: kinds[key](f"instruction '{name}': {key}", value, Call())
        for key, value in given.items()
    }
    return Instruction(name, read)


@cache
def _kinds(name: str) -> dict[str, Reader]:
    """How each argument of an instruction is read: as the rule's own annotations have it."""
    types = argument_types(RULES[name])
    return {key: reader(kind) for key, kind in types.items() if key != "text"}


def check_instruction(text: str, id: str, arguments: dict[str, Any]) -> Ruling:
    """Whether a text obeys one instruction, but for the language it is written in.

    A blank text obeys nothing.
    """
    if not text.strip():
        return Ruling(False, "the response is blank")
    return RULES[id](text, **arguments)


# --- the 25 rules: one small function each, from a text to a ruling


_PLACEHOLDER = re.compile(r"\[[^\[\]\n]*\]")
_STAR_BULLET = re.compile(r"^[^\S\n]*\*[^*][^\n]*", re.MULTILINE)
_DASH_BULLET = re.compile(r"^[^\S\n]*-", re.MULTILINE)
_BOLD = re.compile(r"\*\*([^\n*]*)\*\*")
_ITALIC = re.compile(r"\*([^\n*]*)\*")
_RUN = re.compile(r"\w+")
_BETWEEN_WORDS = re.compile(
    r"[«»“”‘’„`\"()\[\]{}<>;@#$%&?!*\u2012-\u2015]|''|--|\.{2,}|[:,](?!\d)"
    r"|\.(?=[\])}>\"'»”’]*+(?:\s|$))"
    r"|(?<!\w)'(?!(?i:re|ve|ll|m|t|s|d|n)\b)(?=\w)|(?<=[^'])'(?=\s)"
)
_CLITICS = (
    re.compile(r"(?<=[^'\s])(?='[sSmMdD]?\s)"),
    re.compile(r"(?<=[^'\s])(?=(?:'ll|'LL|'re|'RE|'ve|'VE|n't|N'T)\s)"),
)
_CONTRACTIONS = re.compile(
    r"\b(?:(can)(not)|(d)('ye)|(gim)(me)|(gon)(na)|(got)(ta)|(lem)(me)|(more)('n))\b"
    r"|\b(wan)(na)(?=\s)",
    re.IGNORECASE,
)
"""Where NLTK cuts a word in two: JOHN'S, DON'T, CANNOT."""


Relation = Literal["at least", "less than"]


class Ruling(NamedTuple):
    """Whether an instruction is obeyed (None: cannot be told), and what was seen."""

    obeyed: bool | None
    saw: str


def _holds(relation: Relation, count: int, bound: int, what: str) -> Ruling:
    obeyed = count >= bound if relation == "at least" else count < bound
    return Ruling(obeyed, f"{count} {what}; wanted {relation} {bound}")


def has_keywords(text: str, keywords: list[str]) -> Ruling:
    missing = [word for word in keywords if _times(text, word) == 0]
    return Ruling(not missing, f"missing {missing}" if missing else f"has {keywords}")


def keyword_frequency(text: str, keyword: str, relation: Relation, frequency: int) -> Ruling:
    return _holds(relation, _times(text, keyword.strip()), frequency, f"times {keyword!r}")


def _times(text: str, keyword: str) -> int:
    """How often the keyword stands in the text, within words too and whatever the case."""
    return len(re.findall(re.escape(keyword), text, re.IGNORECASE)) if keyword else 0


def no_forbidden_words(text: str, forbidden_words: list[str]) -> Ruling:
    patterns = {word: rf"(?<!\w){re.escape(word)}(?!\w)" for word in forbidden_words}
    found = [w for w, pattern in patterns.items() if re.search(pattern, text, re.IGNORECASE)]
    return Ruling(not found, f"uses {found}" if found else f"avoids {forbidden_words}")


def letter_frequency(text: str, letter: str, let_relation: Relation, let_frequency: int) -> Ruling:
    count = text.lower().count(letter.lower())
    return _holds(let_relation, count, let_frequency, f"times {letter!r}")


def any_language(text: str, language: LanguageCode) -> Ruling:
    return Ruling(True, f"language '{language}' is told from the words")


def number_sentences(text: str, relation: Relation, num_sentences: int) -> Ruling:
    return _holds(relation, len(sentences(text)), num_sentences, "sentences")


def number_words(text: str, relation: Relation, num_words: int) -> Ruling:
    return _holds(relation, len(_RUN.findall(text)), num_words, "words")


def number_paragraphs(text: str, num_paragraphs: int) -> Ruling:
    """Paragraphs are what stands between lines of three asterisks."""
    blocks = [block.strip() for block in text.split("***")]
    blocks = blocks[not blocks[0] : len(blocks) - (not blocks[-1])]
    whole = all(blocks)
    saw = f"{len(blocks)} paragraphs between ***; wanted {num_paragraphs}"
    return Ruling(whole and len(blocks) == num_paragraphs, saw if whole else "a paragraph is empty")


def nth_paragraph_first_word(
    text: str, num_paragraphs: int, nth_paragraph: int, first_word: str
) -> Ruling:
    """Blocks between two line ends are counted without blank ones, and numbered with them."""
    blocks = [block.strip() for block in text.split("\n\n")]
    count = sum(map(bool, blocks))
    if count != num_paragraphs or not 1 <= nth_paragraph <= count:
        return Ruling(False, f"{count} paragraphs; wanted {num_paragraphs}")
    word = (blocks[nth_paragraph - 1].split() or [""])[0].lstrip("'").lstrip('"').lower()
    first = re.split(r"[.,?!'\"]", word, maxsplit=1)[0]
    saw = f"paragraph {nth_paragraph} begins with {short(first)!r}; wanted {first_word!r}"
    return Ruling(bool(blocks[nth_paragraph - 1]) and first == first_word.lower(), saw)


def number_placeholders(text: str, num_placeholders: int) -> Ruling:
    return _holds("at least", len(_PLACEHOLDER.findall(text)), num_placeholders, "[placeholders]")


def has_postscript(text: str, postscript_marker: str) -> Ruling:
    marker = postscript_marker.strip()
    spaced = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    pattern = spaced.get(marker, re.escape(marker.lower()))
    found = re.search(pattern, text.lower()) is not None
    return Ruling(found, f"{'has' if found else 'lacks'} a postscript {postscript_marker!r}")


def number_bullet_lists(text: str, num_bullets: int) -> Ruling:
    count = len(_STAR_BULLET.findall(text)) + len(_DASH_BULLET.findall(text))
    return Ruling(count == num_bullets, f"{count} bullet points; wanted {num_bullets}")


def constrained_response(text: str) -> Ruling:
    options = [f"My answer is {word}." for word in ("yes", "no", "maybe")]
    chosen = [option for option in options if option in text]
    return Ruling(bool(chosen), f"says {chosen[0]!r}" if chosen else f"says none of {options}")


def number_highlighted_sections(text: str, num_highlights: int) -> Ruling:
    """Each pattern reads the whole text, so that what is both bold and italic counts twice."""
    found = [*_ITALIC.findall(text), *_BOLD.findall(text)]
    count = sum(bool(inside.strip()) for inside in found)
    return _holds("at least", count, num_highlights, "*highlights*")


def multiple_sections(text: str, section_spliter: str, num_sections: int) -> Ruling:
    heads = re.findall(rf"{re.escape(section_spliter.strip())}\s?\d+", text)
    return _holds("at least", len(heads), num_sections, f"sections {section_spliter!r}")


def json_format(text: str) -> Ruling:
    body = text.strip()
    for fence in ("```json", "```Json", "```JSON", "```"):
        body = body.removeprefix(fence)
    try:
        json.loads(body.removesuffix("```"))
    except (ValueError, RecursionError) as error:
        return Ruling(False, f"not JSON: {short(str(error))}")
    return Ruling(True, "all of it is JSON")


def has_title(text: str) -> Ruling:
    """From the first << of a line to its last >>, with something else than brackets inside."""
    for line in text.split("\n"):
        start, end = line.find("<<"), line.rfind(">>")
        title = line[start:end].lstrip("<").rstrip(">").strip() if 0 <= start < end else ""
        if title:
            return Ruling(True, f"title {short(title)!r}")
    return Ruling(False, "no <<title>>")


def two_responses(text: str) -> Ruling:
    parts = [part.strip() for part in text.split("******")]
    parts = parts[not parts[0] : len(parts) - (not parts[-1])]
    if len(parts) != 2 or not all(parts):
        return Ruling(False, f"{len(parts)} responses between ******; wanted 2")
    return Ruling(
        parts[0] != parts[1], "two responses" + ("" if parts[0] != parts[1] else ", equal")
    )


def repeat_prompt(text: str, prompt_to_repeat: str) -> Ruling:
    repeats = text.strip().lower().startswith(prompt_to_repeat.strip().lower())
    return Ruling(repeats, f"{'repeats' if repeats else 'does not repeat'} the request first")


def ends_with(text: str, end_phrase: str) -> Ruling:
    ended = text.strip().strip('"').lower().endswith(end_phrase.strip().lower())
    return Ruling(ended, f"ends with {short(text.strip()[-80:])!r}; wanted {short(end_phrase)!r}")


def in_quotation_marks(text: str) -> Ruling:
    body = text.strip()
    wrapped = len(body) > 1 and body[0] == body[-1] == '"'
    return Ruling(wrapped, f"{'is' if wrapped else 'is not'} inside double quotation marks")


def capital_word_frequency(text: str, capital_relation: Relation, capital_frequency: int) -> Ruling:
    """Words are cut as by NLTK's `word_tokenize`: a hyphen joins, a clitic stands alone."""
    spaced = f" {_BETWEEN_WORDS.sub(' ', text)} "
    for clitic in _CLITICS:
        spaced = clitic.sub(" ", spaced)
    spaced = _CONTRACTIONS.sub(lambda m: f" {' '.join(filter(None, m.groups()))} ", spaced)
    count = sum(word.isupper() for word in spaced.split())
    return _holds(capital_relation, count, capital_frequency, "words in capitals")


def all_capitals(text: str) -> Ruling:
    return Ruling(text.isupper(), f"{'all' if text.isupper() else 'not all'} letters are capitals")


def all_lowercase(text: str) -> Ruling:
    return Ruling(text.islower(), f"{'all' if text.islower() else 'not all'} letters are small")


def no_comma(text: str) -> Ruling:
    return Ruling("," not in text, f"{text.count(',')} commas")


LANGUAGE_OF = {
    "language:response_language": "",
    "change_case:english_capital": "en",
    "change_case:english_lowercase": "en",
}
"""Instructions that also ask for a language; an empty text stands for the argument's."""

RULES: dict[str, Callable[..., Ruling]] = {
    "keywords:existence": has_keywords,
    "keywords:frequency": keyword_frequency,
    "keywords:forbidden_words": no_forbidden_words,
    "keywords:letter_frequency": letter_frequency,
    "language:response_language": any_language,
    "length_constraints:number_sentences": number_sentences,
    "length_constraints:number_paragraphs": number_paragraphs,
    "length_constraints:number_words": number_words,
    "length_constraints:nth_paragraph_first_word": nth_paragraph_first_word,
    "detectable_content:number_placeholders": number_placeholders,
    "detectable_content:postscript": has_postscript,
    "detectable_format:number_bullet_lists": number_bullet_lists,
    "detectable_format:constrained_response": constrained_response,
    "detectable_format:number_highlighted_sections": number_highlighted_sections,
    "detectable_format:multiple_sections": multiple_sections,
    "detectable_format:json_format": json_format,
    "detectable_format:title": has_title,
    "combination:two_responses": two_responses,
    "combination:repeat_prompt": repeat_prompt,
    "startend:end_checker": ends_with,
    "startend:quotation": in_quotation_marks,
    "change_case:capital_word_frequency": capital_word_frequency,
    "change_case:english_capital": all_capitals,
    "change_case:english_lowercase": all_lowercase,
    "punctuation:no_comma": no_comma,
}
"""The rule of each instruction; its arguments behind the text are those of the published tables."""
