"""Counting things in texts, the same way everywhere: words, sentences, paragraphs, bullets."""

from __future__ import annotations

import re
from itertools import zip_longest

_WORD = re.compile(r"\b[\w'’-]+\b")
_STOPS = re.compile(r"[.!?。！？]+")
_WIDE_STOP = re.compile(r"[。！？]++[\"'”’)\]]*+")
_CHUNK = re.compile(r"\S+")
_CLOSERS = re.compile(r"[\"')\]}]+(?=\s|--|$)")
_TOKEN = re.compile(
    r"\.{2,}|-{2,}"  # a run of dots or dashes
    r"|[^(\"`{\[:;&#*@)}\]\-,]\S*?(?=$|[)\";}\]*:@'({\[!?]|\.{2,}|-{2,}|,(?:$|[)\";}\]*:@'({\[!?]))"
    r"|\S"
)
_AFTER_STOP = frozenset(")\";}]*:@'({[!?")
"""What may follow a sentence's stop without a blank between them."""
_NUMBER = re.compile(r"-?[.,]?\d[\d,.-]*")
_ABBREVIATIONS = frozenset(
    _CHUNK.findall(
        "c d e f g h k l m n p r s t v w "
        "adm col dr gen jr lt maj messrs mr mrs ms prof rep reps sen sr st "
        "bros cie co corp cos inc ltd m.b.a ph.d "
        "jan feb aug sep sept oct nov dec tues wed fri a.m p.m yr "
        "ala ariz calif colo conn fla ga ill kan ky mich minn n.c n.d n.h n.j n.m n.v n.y nev okla "
        "ore pa r.i s.c tenn va vt w.va wash wis "
        "ave ct d.c ft l.a u.k u.n u.s u.s.a u.s.s.r a.d chg mg ok vs"
    )
)
"""Words whose stop ends no sentence, of those that Punkt knows: neither e.g. nor etc. is one."""
_INITIALS = re.compile(r"[A-Z]\.[A-Z]")
"""Two initials of a name; Punkt knows some fifty pairs."""
_STARTERS = frozenset(
    _CHUNK.findall(
        "he i it there these they this the both many most some "
        "although but despite even if though when while yet since nor so thus "
        "however indeed instead meanwhile moreover nevertheless nonetheless separately similarly "
        "according among in sales under"
    )
)
"""Words that begin a sentence even after an abbreviation, by Punkt."""
_BULLET = re.compile(r"^[ \t]*(?:[-*+]|\d+[.)])[ \t]+\S", re.MULTILINE)
_HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+\S", re.MULTILINE)
_NUMERALS = "〇零一二三四五六七八九十百千万亿兩两點点"
_KATAKANA = "\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"
# Scripts without blanks between words: Han, Hiragana and Bopomofo by the letter, katakana and
# Chinese numerals by the run, so that 四 does not stand in 十四.
_UNSPACED = re.compile(
    rf"[{_NUMERALS}]+|[{_KATAKANA}]+"
    r"|[\u3041-\u3096\u309d\u309e\u3105-\u312f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    r"\U00020000-\U0003ffff々]"
)
_CLOSING = {")": "(", "]": "[", "}": "{"}


def spaced(text: str) -> str:
    """The text with blanks around each Chinese or Japanese letter, where they write none.

    Each such letter is a token of its own then, a run of katakana or of Chinese numerals is one.
    Other scripts are left as they are.
    """
    if text.isascii():
        return text
    return _UNSPACED.sub(lambda match: f" {match[0]} ", text)


def goes_on(text: str, place: int) -> bool:
    """Whether a word or a number that ends before `place` really goes on there.

    `10` goes on after its 1 and `2.5` after its 2; a Chinese letter is no part of a number or a word
    beside it.
    """
    before, after = text[place - 1 : place], text[place : place + 1]
    if not before.isalnum() or not after:
        return False
    if after.isalnum() or after == "_":
        return len(spaced(before + after).split()) == 1
    is_number = before.isdecimal() and text[place + 1 : place + 2].isdecimal()
    return (after in ".,/:-–−" and is_number) or (after in "%‰" and before.isdecimal())


def words(text: str) -> list[str]:
    """Runs of letters, digits, underscores, apostrophes and hyphens."""
    return _WORD.findall(text)


def sentences(text: str) -> list[str]:
    """The text cut into sentences as NLTK's Punkt does for English, and after 。！？ as well.

    A stop ends a sentence before a blank, a quote, a bracket or an asterisk, unless it belongs to an
    abbreviation, an initial or a number before a small letter. Punkt also knows for 20,000 words
    how often each is capitalised; here the case of the letter decides (see `_ends_sentence`). A
    text without a letter or digit has no sentence.
    """
    cuts: list[tuple[int, int]] = []
    """Where a sentence ends, and where the next one starts."""
    chunks = list(_CHUNK.finditer(text)) if _says(text) else []
    for chunk, follower in zip_longest(chunks, chunks[1:]):
        word, start = chunk.group(), chunk.start()
        wide = [start + m.end() for m in _WIDE_STOP.finditer(word)]
        cuts += [(end, end) for end in wide]
        stop = _last_stop(word, has_follower=follower is not None)
        if stop < 0 or (wide and start + stop < wide[-1]):
            continue
        after = word[stop + 1 : stop + 2] or (follower.group() if follower else "")
        if _has_end(word[: stop + 1], after):
            end = start + stop + 1
            cuts.append((end, end if stop + 1 < len(word) or not follower else follower.start()))
    return _cut(text, cuts) if chunks else []


def _last_stop(word: str, *, has_follower: bool) -> int:
    """The last place in a word where a sentence may end; -1 where there is none."""
    for place in range(max(map(word.rfind, ".!?")), -1, -1):
        if word[place] in ".!?":
            is_last = place == len(word) - 1
            if has_follower if is_last else word[place + 1] in _AFTER_STOP:
                return place
    return -1


def _has_end(word: str, after: str) -> bool:
    """Whether a sentence ends within a word or after it; like Punkt, `after` is searched too."""
    tokens = [*_TOKEN.findall(word), *_TOKEN.findall(after)]
    return any(map(_ends_sentence, tokens, tokens[1:]))


def _ends_sentence(token: str, after: str) -> bool:
    if token in (".", "!", "?"):
        return True
    if not token.endswith("."):
        return False
    begins = after[:1].isupper() and after.lower().removesuffix(".") in _STARTERS
    if token.endswith(".."):
        return begins
    body = token[:-1]
    is_initial = len(body) == 1 and (body.isalpha() or body == "_")
    is_short = {body.lower(), body.lower().rpartition("-")[2]} & _ABBREVIATIONS
    if is_short or _INITIALS.fullmatch(body):
        return begins and not is_initial
    if is_initial or _NUMBER.fullmatch(body):
        if after[:1].islower() or after in (";", ":", ",", ".", "!", "?"):
            return False
        # `J. Smith` is a name, `vitamin a. Next` and `than I. Next` are not.
        is_name = is_initial and body.isupper() and body != "I" and after[:1].isupper()
        return begins or not is_name
    return True


def _cut(text: str, cuts: list[tuple[int, int]]) -> list[str]:
    """The pieces between the cuts; quotes and brackets that close a sentence go with it."""
    found: list[str] = []
    start = 0
    for end, following in [*cuts, (len(text), len(text))]:
        if found and (closing := _CLOSERS.match(text, start, end)):
            found[-1] += closing.group()
            start = closing.end()
        if piece := text[start:end].strip():
            found.append(piece)
        start = following
    return found


def sentence_spans(text: str) -> int:
    """How many spans with a letter or digit end in . ! ? or a full-width form, or end the text."""
    return sum(map(_says, _STOPS.split(text)))


def _says(text: str) -> bool:
    return any(letter.isalnum() for letter in text)


def paragraphs(text: str) -> list[str]:
    """Blocks between blank lines."""
    blocks: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.strip():
            blocks[-1].append(line)
        elif blocks[-1]:
            blocks.append([])
    return ["\n".join(block).strip() for block in blocks if block]


def lines(text: str) -> list[str]:
    """Lines that are not blank."""
    return [line for line in text.splitlines() if line.strip()]


def bullets(text: str) -> int:
    """Lines that start with -, *, + or a number with a point or a bracket."""
    return len(_BULLET.findall(text))


def headings(text: str) -> int:
    """Markdown headings."""
    return len(_HEADING.findall(text))


def brackets_balanced(text: str) -> bool:
    """True where every ( [ { is closed by its own kind, in order."""
    open_ones: list[str] = []
    for letter in text:
        if letter in "([{":
            open_ones.append(letter)
        elif letter in _CLOSING and (not open_ones or open_ones.pop() != _CLOSING[letter]):
            return False
    return not open_ones


def count_occurrences(text: str, needle: str, *, overlapping: bool = False) -> int:
    """How often the needle stands in the text, whatever the case; an empty needle counts 0."""
    haystack, needle = _text("text", text).casefold(), _text("needle", needle).casefold()
    pattern = f"(?={re.escape(needle)})" if overlapping else re.escape(needle)
    return len(re.findall(pattern, haystack)) if needle else 0


def constraint_tools(text: str) -> dict[str, int | bool]:
    """Everything that is counted here, by name."""
    _text("text", text)
    return {
        "words": len(words(text)),
        "sentences": sentence_spans(text),
        "paragraphs": len(paragraphs(text)),
        "lines": len(lines(text)),
        "bullets": bullets(text),
        "headings": headings(text),
        "characters": len(text),
        "brackets_balanced": brackets_balanced(text),
    }


def _text(what: str, value: object) -> str:
    if not isinstance(value, str):
        # Imported here: this file also runs on its own, inside the judge's sandbox.
        from burnish.arguments import refused

        raise refused(what, value, "a text")
    return value
