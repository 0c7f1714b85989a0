"""Find the sentences of a rubric that name the better of two responses.

    leaks("Facts 60%. Response 1 is better.")            # [" Response 1 is better."]
    without_leaks("<rubric>Facts. Pick 2.</rubric>")     # "<rubric>Facts.</rubric>"

With such a sentence a proxy needs no rubric, so a judge in training would learn to write it. The
whole rubric is matched, not line by line, with other forms of digits and white space folded. Weights,
numbered lists, points and counts are no names: a rubric that is wrongly refused is paid as wrong.
"""

from __future__ import annotations

import re
import unicodedata

from burnish.arguments import as_text

__all__ = ["leaks", "without_leaks"]

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
_LEAK = re.compile(
    rf"{_NAMED}{_GAP}(?:\w+{_GAP}){{0,6}}?(?:{_GOOD}|wins?|{_BAD})\b"
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
# What names no response: a list's number, both responses at once, the number of something else.
_BULLET = re.compile(r"^[^\S\n]*(?:<rubric>)?[^\S\n]*(?:[-*•]|\(?\w{1,2}[.)])(?=[^\S\n]+(?!is\b|wins\b)\w)", re.M)  # fmt: skip
_PAIR = r"(?:and|or|nor|vs\.?|versus|/|&)"
_BOTH = re.compile(
    rf"(?<![\w.])(?:1\s*{_PAIR}\s*(?:{_NOUN}\s*)?2|2\s*{_PAIR}\s*(?:{_NOUN}\s*)?1|"
    rf"A\s+{_PAIR}\s+(?:{_NOUN}\s*)?B)\b(?![^.]{0, 80}\brespectively)"
)
_OTHER = re.compile(
    r"\b(?:criteri(?:on|a)|levels?|scores?|step|item|grade|rating|points?|part|rule|section|weight|"
    r"least|most|of|than)\s+(?:of\s+)?#?\d",
    re.I,
)


def leaks(rubric: str) -> list[str]:
    """Sentences of a rubric that name a winner: with these a proxy needs no rubric."""
    return [part for part, is_leak in _sentences(as_text("rubric", rubric)) if is_leak]


def without_leaks(rubric: str) -> str | None:
    """The rubric without such sentences; None where nothing is left."""
    parts = _sentences(as_text("rubric", rubric))
    kept = "".join(part for part, is_leak in parts if not is_leak)
    if not kept.replace("<rubric>", "").replace("</rubric>", "").strip():
        return None
    open_, close = "<rubric>", "</rubric>"
    return f"{open_}{kept.removeprefix(open_).removesuffix(close)}{close}"


def _sentences(text: str) -> list[tuple[str, bool]]:
    """The sentences in their order, and whether a match reaches into them."""
    folded, places = _folded(text)
    spans = [(places[m.start()], places[m.end() - 1] + 1) for m in _LEAK.finditer(folded)]
    found, start = [], 0
    for part in re.split(r"(?<=[.!?;\n])", text):
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
        form = str(digit) if digit is not None else unicodedata.normalize("NFKC", character)
        plain += form
        places += [place] * len(form)
    whole = "".join(plain)
    for pattern, mark in ((_BULLET, ";"), (_BOTH, "_"), (_OTHER, "_")):
        whole = pattern.sub(lambda m, mark=mark: mark * len(m[0]), whole)  # type: ignore[misc]
    return re.sub(r"\s", " ", whole), places
