"""What a patch may do to a skill: rules in code that no prompt can talk its way around.

Trajectories are other people's text, and so is everything a model made of them. The released code
asks for most of these rules in a prompt; its paths are unchecked. A defence against poisoned
trajectories that finds what is written plainly, not every disguise; the threshold of support is another.
"""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from burnish.agents.trace2skill.edits import (
    NO_TARGET,
    OPERATIONS,
    WRITERS,
    Edit,
    GivenEdit,
    Span,
    as_edit,
    front_lines,
    outline,
    plain_words,
    span_of,
    try_edit,
)
from burnish.agents.trace2skill.skill_files import mentioned
from burnish.arguments import as_list, as_table
from burnish.boundary import public
from burnish.rewards.checks.match import is_stated_in, loose_forms
from burnish.rewards.judges.skill_rm.package import MANUAL

_FILE = re.compile(r"SKILL\.md|references/\w[\w\-]*(?:\.[\w\-]+)*\.md")
_SCRIPT = re.compile(r"scripts/\w[\w\-]*(?:\.[\w\-]+)*\.(?:py|sh|js)")


class Dropped(NamedTuple):
    edit: Edit
    reason: str


class Sifted(NamedTuple):
    kept: list[Edit]
    dropped: list[Dropped]


Support = Callable[[Edit], int]
"""How many independent trajectories speak for an edit."""


def sifted(edits: Iterable[Edit], problem: Callable[[Edit], str]) -> Sifted:
    """The edits without a problem, and the others with theirs."""
    found = [(edit, problem(edit)) for edit in edits]
    return Sifted([e for e, why in found if not why], [Dropped(e, why) for e, why in found if why])


def without(edits: Sequence[Edit], why: Mapping[int, str]) -> Sifted:
    """The edits without those of these places, which are dropped with their reasons."""
    kept = [edit for place, edit in enumerate(edits) if place not in why]
    return Sifted(kept, [Dropped(edits[place], reason) for place, reason in why.items()])


def support_of(edit: Mapping[str, Any]) -> int:
    """The trajectories that speak for an edit, each counted."""
    return len(edit.get("source_ids", ()))


# --- what an edit would write

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters (a tab and a line feed are none), and halves of characters."""


def well_formed(edits: Sequence[Edit]) -> Sifted:
    """Drop edits that would break the file around them: control characters, open code, headings.

    A heading of the level of its section, or above it, would end the section and take what follows
    it along. A content that begins by repeating the heading of its section loses that line.
    """
    whole = []
    for edit in edits:
        first, _, rest = (edit.get("content") or "").partition("\n")
        own = (edit.get("target_section") or "").strip()
        adds = edit["op"] in ("append_to_section", "add_section")
        repeats = adds and own and first.strip() == own and rest.strip()
        whole.append({**edit, "content": rest.lstrip("\n")} if repeats else edit)
    return sifted(whole, _broken)


def _broken(edit: Edit) -> str:
    fields = {name: edit.get(name) or "" for name in ("content", "target_section", "file")}
    for name, text in fields.items():
        if _CONTROL.search(text.replace("\r\n", "\n")):
            return f"its {name} holds control characters"
    section, content = fields["target_section"], fields["content"]
    found = outline(["", *content.split("\n")])  # a line of dashes at its top is no front matter
    if found.is_open:
        return "it opens a block of code and never closes it"
    if edit["op"] == "add_section" and section:
        lines = section.split("\n")
        if len(lines) > 1 or not outline(["", *lines]).headings:
            return "its target_section is no heading"
    if edit["op"] not in ("create", "delete_file") and found.headings:
        heading = section.strip() or "## "
        level = len(heading) - len(heading.lstrip("#"))
        if min(found.headings.values()) <= level:
            return "it holds a heading that would end the section it is written into"
    return ""


# --- paths, and files with their links


@public
def sanitize(
    edits: Sequence[GivenEdit],
    state: Mapping[str, str],
    protected: Sequence[str] = (),
    scripts: bool = False,
) -> list[Edit]:
    """The edits that may be carried out on the files of `state`.

    Only `SKILL.md` and `references/NAME.md` may be touched (with `scripts` also `scripts/NAME.py`),
    never a protected file; `create` overwrites nothing, other edits need an existing file; a new
    reference needs a link from `SKILL.md`, a link its file. Repeated until nothing is left to drop.

    >>> sanitize([{"op": "create", "file": "../x.md", "content": "no"}], {"SKILL.md": "# A"})
    []
    """
    return sift(edits, state, protected=protected, scripts=scripts).kept


def sift(
    edits: Sequence[Edit],
    state: Mapping[str, str],
    *,
    protected: Sequence[str] = (),
    scripts: bool = False,
) -> Sifted:
    """`sanitize`, with the edits that were dropped and the reasons."""
    safe = frozenset(map(_same, protected))
    known = frozenset(map(_same, state))
    made = {edit.get("file") for edit in edits if edit["op"] == "create"}

    def problem(edit: Edit) -> str:
        operation, file = edit["op"], edit.get("file") or ""
        if operation not in OPERATIONS:
            return f"no operation '{operation}'"
        if not _FILE.fullmatch(file) and not (scripts and _SCRIPT.fullmatch(file)):
            return f"'{file[:80]}' is no file of a skill that may be edited"
        if _same(file) in safe:
            return f"{file} is protected"
        if file == MANUAL:
            is_whole = operation in ("create", "delete_file")
            return f"{MANUAL} is never created or deleted" if is_whole else ""
        if operation == "create":
            return f"{file} exists already" if _same(file) in known else ""
        return "" if file in state or file in made else f"there is no file {file}"

    found = sifted(edits, problem)
    paired = _paired(found.kept, state, links_from=(MANUAL,))
    return Sifted(paired.kept, found.dropped + paired.dropped)


def _same(path: str) -> str:
    """A path without spelling: what two names of one file on any disk have in common."""
    plain = unicodedata.normalize("NFKC", path.strip().replace("\\", "/")).casefold()
    return posixpath.normpath(plain).lstrip("/")


@public
def enforce_pairs(patches: Sequence[object], state: Mapping[str, str]) -> list[dict[str, Any]]:
    """Patches in which every new reference has its link in the same patch, and every link its file.

    A file is deleted only with its links. Dropping one side may orphan the other, so the rule is
    repeated until nothing changes (the released code tests each side once).

    >>> patch = {"edits": [{"op": "create", "file": "references/a.md", "content": "A"}]}
    >>> enforce_pairs([patch], {"SKILL.md": "# S"})
    [{'edits': []}]
    """
    found = []
    for patch in patches:
        table = as_table("patches", patch, "patches: tables with a list of edits")
        edits = [as_edit("patches", edit) for edit in as_list("patches", table.get("edits", ()))]
        found.append({**table, "edits": _paired(edits, state).kept})
    return found


def _paired(
    edits: Sequence[Edit], files: Mapping[str, str], links_from: tuple[str, ...] = ()
) -> Sifted:
    kept, dropped = list(edits), list[Dropped]()
    while True:
        found = sifted(kept, _lack(kept, files, links_from))
        kept, dropped = found.kept, dropped + found.dropped
        if not found.dropped:
            return Sifted(kept, dropped)


def _lack(
    edits: Sequence[Edit], files: Mapping[str, str], links_from: tuple[str, ...]
) -> Callable[[Edit], str]:
    """What an edit lacks among the others: a link for its file, a file for its link."""
    made = {one.get("file") for one in edits if one["op"] == "create"}
    gone = {one.get("file") for one in edits if one["op"] == "delete_file"}
    linked: set[str] = set()
    left = dict(files)
    for one in edits:
        file = one.get("file") or ""
        if one["op"] not in ("create", "delete_file") and (not links_from or file in links_from):
            linked.update(mentioned(one.get("content") or ""))
        if file in left:
            left[file] = "" if file in gone else try_edit(left[file], one).text
    lost = set(mentioned(files.get(MANUAL, ""))) - set(mentioned(left.get(MANUAL, "")))

    def lack(edit: Edit) -> str:
        operation, file = edit["op"], edit.get("file") or ""
        if operation == "delete_file":
            holders = [path for path, text in left.items() if path != file and file in text]
            return f"{holders[0]} still links to it" if holders else ""
        for one in mentioned(edit.get("content") or ""):
            if (one not in files and one not in made) or one in gone:
                return f"links to {one}, which no edit of the patch creates"
        if operation == "create":
            if file in files:
                return f"{file} exists already"
            return "" if file in linked else f"no edit of the patch links to {file}"
        if operation in WRITERS and file == MANUAL and lost:
            text = files.get(file, "")
            own = set(mentioned(text)) - set(mentioned(try_edit(text, edit).text))
            orphans = sorted(one for one in lost & own if one in files and one not in gone)
            return f"takes away the only link to {orphans[0]}" if orphans else ""
        return ""

    return lack


# --- edits that are in each other's way


def conflicts(
    edits: Sequence[Edit], state: Mapping[str, str], support: Support = support_of
) -> Sifted:
    """Of two edits of the same lines, one of which takes lines away, one stays.

    More support wins, then the later merge level, then the earlier place. Additions never conflict.
    Edits of the front matter, and edits whose target is missing, are dropped here too.
    """
    taken: list[tuple[str, Span]] = []
    why: dict[int, str] = {}
    order = sorted(
        range(len(edits)),
        key=lambda i: (-support(edits[i]), -edits[i].get("level", 0), i),
    )
    for index in order:
        edit = edits[index]
        file = edit.get("file") or ""
        if edit["op"] in ("create", "delete_file") or file not in state:
            continue
        span = span_of(edit, state[file])
        if span is None:
            why[index] = NO_TARGET
        elif span.start < front_lines(state[file].split("\n")):
            why[index] = "it would change the front matter"
        elif any(path == file and span.meets(other) for path, other in taken):
            why[index] = "another edit of these lines has more support or came first"
        else:
            taken.append((file, span))
    return without(edits, why)


NEGATIVE = {
    *("never", "not", "no", "dont", "avoid", "without"),
    *("cannot", "cant", "mustnt", "shouldnt", "stop"),
}
_MODAL = {
    *("always", "do", "must", "should", "shall", "please", "be", "to", "the", "a", "an"),
    *("you", "your", "it", "is", "are", "make", "sure", "ensure"),
}


def contradictions(edits: Sequence[Edit], support: Support = support_of) -> Sifted:
    """Of "do X" and "never X" the one with more support stays; of equal support neither does."""
    sides: dict[frozenset[str], tuple[set[int], set[int]]] = {}
    for index, edit in enumerate(edits):
        for words, is_negative in _rules(edit):
            sides.setdefault(words, (set(), set()))[is_negative].add(index)
    dropped: dict[int, str] = {}
    for demands, bans in sides.values():
        for own, others in ((demands, bans), (bans, demands)):
            for index in own:
                rivals = [support(edits[i]) for i in others if i != index]
                if rivals and support(edits[index]) <= max(rivals):
                    even = support(edits[index]) == max(rivals)
                    dropped[index] = "another edit says the opposite with " + (
                        "as much support" if even else "more support"
                    )
    return without(edits, dict(sorted(dropped.items())))


def _rules(edit: Edit) -> Iterable[tuple[frozenset[str], bool]]:
    for line in (edit.get("content") or "").split("\n"):
        words = plain_words(line.replace("'", "").replace("\u2019", "")).split()
        core = frozenset(words) - NEGATIVE - _MODAL
        if len(core) >= 2:
            yield core, bool(NEGATIVE & set(words))


# --- answers of tasks, and text that gives orders


def secrets_of(values: Iterable[Any], public: str = "") -> list[str]:
    """Of gold values and ids those that would give a task away: four signs, or three digits.

    What stands in `public`, the task's own words, is no secret.
    """
    found = []
    for value in values:
        text = str(value).strip()
        digits = sum(letter.isdigit() for letter in text)
        is_telling = len(text) >= 4 or digits >= 3
        if is_telling and not _Text(public).quotes(_Secret(text)):
            found.append(text)
    return list(dict.fromkeys(found))


def leaks(edits: Sequence[Edit], secrets: Sequence[str]) -> Sifted:
    """Drop edits that quote a secret, or speak of the file with the answers."""
    hidden = [_Secret(one) for one in secrets]

    def problem(edit: Edit) -> str:
        text = _words_of(edit)
        shown = _Text(text)
        if any(shown.quotes(one) for one in hidden):
            return "it quotes an answer or the id of a task"
        return "it speaks of the file with the answers" if _GOLD.search(text) else ""

    return sifted(edits, problem)


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

    def problem(edit: Edit) -> str:
        text = _words_of(edit)
        # An order that is broken into lines is still one.
        forms = (text, " ".join(text.split()), " ".join(_plain_form(text).split()))
        for why, pattern in _HOSTILE_PATTERNS.items():
            if any(map(pattern.search, forms)):
                return f"it {why}"
        is_new = bool(set(_URL.findall(text)) - known)
        return "it has an address that the skill does not have" if is_new else ""

    return sifted(edits, problem)


def _words_of(edit: Mapping[str, Any]) -> str:
    return "\n".join(str(edit.get(name) or "") for name in ("content", "target_section", "file"))


class _Secret:
    def __init__(self, text: str) -> None:
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
        self.numbers = {_number(one) for one in _DIGITS.findall(_plain_form(text))}
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
