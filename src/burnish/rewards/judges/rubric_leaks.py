"""Find the sentences of a rubric that name the better of two responses.

    leaks("Facts 60%. Response 1 is better.")            # [" Response 1 is better."]
    without_leaks("<rubric>Facts. Pick 2.</rubric>")     # "<rubric>Facts.</rubric>"

With such a sentence a proxy needs no rubric, so a judge in training would learn to write it. The
whole rubric is matched, not line by line, with other forms of digits and white space, accents and
Cyrillic and Greek look-alikes folded. Weights, numbered lists, points and counts are no names: a
rubric that is wrongly refused is paid as wrong.

Read are English, and in German, French, Spanish and Chinese the words for a numbered response and
for better and worse. Not seen: other languages, a response told by what it says ("the one with the
table"), criteria that only one response can meet, and signs that judge and proxy have agreed on.
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
_BULLET = re.compile(r"^[^\S\n]*(?:<rubric>)?[^\S\n]*(?:[-*•]|\(?\w{1,2}[.)])(?=[^\S\n]+(?!is\b|wins\b)\w)", re.M)  # fmt: skip
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
    open_, close = "<rubric>", "</rubric>"
    return f"{open_}{kept.removeprefix(open_).removesuffix(close)}{close}"


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
