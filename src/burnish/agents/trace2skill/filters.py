"""What must not get into a skill: answers of tasks, and text that gives orders.

    kept, dropped = leaks(edits, secrets)         # gold values, ids of tasks
    kept, dropped = instructions(kept, files)     # text that talks to the reader's model, not of the task

A first defence against poisoned trajectories; the threshold of support is the second. Patterns find
what is written plainly, not every disguise.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from burnish.agents.trace2skill.edits import Edit
from burnish.agents.trace2skill.guards import Dropped, Sifted
from burnish.arguments import refused
from burnish.rewards.checks.match import is_stated_in, loose_forms


def secrets_of(values: Iterable[Any], public: str = "") -> list[str]:
    """Of gold values and ids those that would give a task away: four signs, or three digits.

    What stands in `public`, the task's own words, is no secret.
    """
    found = []
    for value in values:
        text = str(value).strip()
        digits = sum(letter.isdigit() for letter in text)
        if (len(text) >= 4 or digits >= 3) and not _quotes(public, text):
            found.append(text)
    return list(dict.fromkeys(found))


def leaks(edits: Sequence[Edit], secrets: Sequence[str]) -> Sifted:
    """Drop edits that quote a secret, or speak of the file with the answers."""
    kept, dropped = [], []
    hidden = [_Secret(one) for one in secrets]
    for edit in edits:
        text = _words_of(edit)
        shown = _Text(text)
        if any(shown.quotes(one) for one in hidden):
            dropped.append(Dropped(edit, "it quotes an answer or the id of a task"))
        elif _GOLD.search(text):
            dropped.append(Dropped(edit, "it speaks of the file with the answers"))
        else:
            kept.append(edit)
    return Sifted(kept, dropped)


_GOLD = re.compile(
    r"\b(?:gold(?:en)?|ground[ -]?truth)[ _-]?(?:file|workbook|output|answer|solution|value)s?\b"
    r"|\b(?:reference|expected)[ _-]?(?:workbook|answer|solution)s?\b|\banswer key\b|_golden\b|_answer\.xlsx",
    re.IGNORECASE,
)
_HOSTILE = {
    "tells a model to drop its instructions": (
        r"\b(?:ignore|disregard|forget|override)\b.{0,40}\b(?:instructions?|prompts?|guardrails?)\b"
        r"|\b(?:ignore|disregard|forget)\s+(?:all|everything|anything)\b.{0,20}\b(?:above|before|previous)"
        r"|\byou are now\b|\bnew (?:system )?(?:instructions|prompt)\b|\bsystem prompt\b"
    ),
    "holds marks of a chat template": (
        r"<\|[^|>\n]{1,40}\|>|\[/?INST\]|<</?SYS>>|</?(?:system|assistant)>|</?(?:start|end)_of_turn>|"
        r"</?s>|<[|\uff5c][^>\n]{1,40}>"
    ),
    "asks for secrets": (
        r"\b(?:passwords?|passwd|passphrases?|credentials?|(?:api|secret|private|ssh)[ _-]?keys?|"
        r"access[ _-]?tokens?|id_(?:rsa|dsa|ecdsa|ed25519))\b|/etc/shadow\b|"
        r"\.(?:ssh|env|netrc|aws|gnupg|pgpass|kube|npmrc|pypirc)\b"
    ),
    "would run or send something": (
        r"\brm\s+-rf?\b|\bcurl\b|\bwget\b|\bbase64\s+(?:-d|--decode)|\beval\s*\(|\bexec\s*\(|"
        r"\bos\.system\b|\bsubprocess\b|\bnc\s+-|/dev/tcp|\bchmod\s+\+?[0-7x]|\bsudo\b|"
        r"\b(?:send|post|upload|e-?mail|exfiltrate)\b.{0,40}\b(?:to|https?)\b.{0,20}(?:https?:|@)"
    ),
    "hides text": (
        r"[\u00ad\u034f\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff\U000e0000-\U000e007f]"
        r"|[A-Za-z0-9+/]{160,}={0,2}|<!--"
    ),
}
_HOSTILE_PATTERNS = {why: re.compile(text, re.IGNORECASE) for why, text in _HOSTILE.items()}
_URL = re.compile(
    r"\b(?:https?|ftps?|file)://[^\s)>\]]+|\bwww\.[^\s)>\]]+|(?<![:/\w])//[\w-]+\.[^\s)>\]]+"
    r"|\bjavascript:[^\s)>\]]+|\bdata:[\w/+.-]*[;,][^\s)>\]]+",
    re.IGNORECASE,
)


def instructions(edits: Sequence[Edit], state: Mapping[str, str]) -> Sifted:
    """Drop edits that carry orders, secrets, commands, hidden text or addresses new to the skill."""
    known = set(_URL.findall("\n".join(state.values())))
    kept, dropped = [], []
    for edit in edits:
        text = _words_of(edit)
        # An order that is broken into lines is still one.
        forms = (text, " ".join(text.split()), " ".join(_plain_form(text).split()))
        found = [why for why, p in _HOSTILE_PATTERNS.items() if any(map(p.search, forms))]
        if not found and set(_URL.findall(text)) - known:
            found = ["has an address that the skill does not have"]
        if found:
            dropped.append(Dropped(edit, f"it {found[0]}"))
        else:
            kept.append(edit)
    return Sifted(kept, dropped)


def _words_of(edit: Mapping[str, Any]) -> str:
    return "\n".join(str(edit.get(name) or "") for name in ("content", "target_section", "file"))


def _quotes(text: str, secret: str) -> bool:
    """Whether a text holds a secret, also in another spelling: 1,234,567 for 1234567, other marks."""
    return _Text(text).quotes(_Secret(secret))


class _Secret:
    """A secret, read once for all texts."""

    def __init__(self, text: str) -> None:
        if not text:
            raise refused("secret", text, "a text")
        self.number = _number(_plain_form(text))
        self.lowered = text.casefold()
        self.forms = loose_forms(text.replace("_", " "))
        self.is_long = len(self.forms[1].strip()) >= 4
        start = r"(?<!\w)" if text[0].isalnum() else ""
        end = r"(?!\w)" if text[-1].isalnum() else ""
        self.word = f"{start}{re.escape(text)}{end}"


class _Text:
    """A text in which secrets are looked up, read once for all of them."""

    def __init__(self, text: str) -> None:
        self.text, self.lowered = text, text.casefold()
        self.numbers = {
            number
            for one in _DIGITS.findall(_plain_form(text))
            if (number := _number(one)) is not None
        }
        self.forms = loose_forms(text.replace("_", " "))

    def quotes(self, secret: _Secret) -> bool:
        """Whether it holds the secret: its number, its words in another spelling, or itself."""
        if secret.number is not None and secret.number in self.numbers:
            return True
        if secret.is_long and is_stated_in(self.forms, secret.forms):
            return True
        if secret.lowered not in self.lowered:
            return False
        return re.search(secret.word, self.text, re.IGNORECASE) is not None


def _plain_form(text: str) -> str:
    """Full-width digits and other forms of a sign as the usual one."""
    return unicodedata.normalize("NFKC", text)


_DIGITS = re.compile(
    r"(?<![\w.])[-+]?\d[\d,.'\u2019_\u00a0\u202f]*(?:[eE][-+]?\d{1,2}(?!\d))?(?: \d{3}(?!\d))*"
)


def _number(text: str) -> str | None:
    """A number without its marks for thousands, and without zeros that say nothing.

    >>> _number("$1,234,567.00"), _number("1.234.567"), _number("July")
    ('1234567', '1234567', None)
    """
    plain = re.sub(r"[\s'\u2019_$\u20ac\u00a3]", "", text.strip()).rstrip(".,%")
    is_decimal = plain.count(",") == 1 and not re.search(r",\d{3}$", plain)
    if is_decimal and plain.find(".") < plain.find(","):  # a comma before the decimals
        plain = plain.replace(".", "").replace(",", ".")
    plain = plain.replace(",", "")
    if plain.count(".") > 1:
        plain = plain.replace(".", "")
    if re.fullmatch(r"[-+]?\d+(?:\.\d+)?[eE][-+]?\d{1,2}", plain):
        plain = f"{Decimal(plain):f}"
    if not re.fullmatch(r"[-+]?\d+(?:\.\d+)?", plain):
        return None
    whole, _, part = plain.lstrip("+-").partition(".")
    part = part.rstrip("0")
    return (whole.lstrip("0") or "0") + (f".{part}" if part else "")
