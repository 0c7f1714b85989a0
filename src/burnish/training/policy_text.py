"""A policy as a text file: what a teacher reads in its context and a student is to learn.

    # Role and rules                        goes into the system message, behind the student's own
    You are a helpful assistant.

    ## Examples                             become earlier turns of the conversation
    User: Which pill helps against a cold?
    Assistant: I cannot advise on medicine. Please ask a doctor.

Student and teacher must differ by the policy alone: a template that writes a system message of its own
where the conversation has none gets the policy behind that text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from burnish.boundary import public
from burnish.errors import UserError
from burnish.lm.tokenizer import Tokenizer
from burnish.records import Message
from burnish.texts import shown_path

_EXAMPLES = re.compile(r"^#{1,6}\s*(?:worked\s+)?examples?\b.*$", re.IGNORECASE)
_HEADING = re.compile(r"^#{1,6}\s")
_TURN = re.compile(r"^\s*(user|assistant)\s*:\s*(.*)$", re.IGNORECASE)
_ITEM = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+")
_ASKED, _SYSTEM = "\ue010", "\ue011"


class PolicyText(NamedTuple):
    """A policy as a teacher reads it."""

    name: str
    system: str
    """For the system message; may be empty where there are examples."""
    examples: tuple[tuple[str, str], ...] = ()
    """Earlier turns: what a user asked and how the policy has it answered."""
    digest: str = ""
    cut: int = 0
    """Items that did not fit the context and were left out."""


def read_policy(path: Path | str) -> PolicyText:
    """Read a policy file; one line says what is wrong with it."""
    path = Path(path)
    where = shown_path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"policy {where}: cannot read it: {error.strerror}.") from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"policy {where} is no UTF-8 text (byte {error.start}).") from None
    return parse_policy.plain(text, path.name, digest=hashlib.sha256(content).hexdigest())


@public
def parse_policy(text: str, name: str = "policy", *, digest: str = "") -> PolicyText:
    """A policy from its text.

    >>> found = parse_policy("Be brief.\\n\\n## Examples\\nUser: Hi, how are you?\\nAssistant: Well.")
    >>> found.system, found.examples
    ('Be brief.', (('Hi, how are you?', 'Well.'),))
    """
    rules: list[str] = []
    turns: list[tuple[str, list[str]]] = []
    inside = False
    for line in text.splitlines():
        if _EXAMPLES.match(line):
            inside = True
        elif inside and _HEADING.match(line):
            inside = False
            rules.append(line)
        elif not inside:
            rules.append(line)
        elif found := _TURN.match(line):
            turns.append((found[1].lower(), [found[2]]))
        elif turns:
            turns[-1][1].append(line)
        elif line.strip():
            raise UserError(
                f"policy {name}: the examples begin with {line.strip()[:40]!r}; expected 'User: ...'"
            )
    roles = [role for role, _ in turns]
    texts = ["\n".join(lines).strip() for _, lines in turns]
    if roles != ["user", "assistant"] * (len(roles) // 2) or not all(texts):
        raise UserError(
            f"policy {name}: its examples are not pairs of 'User: ...' and 'Assistant: ...' with a "
            f"text each (found {', '.join(roles[:6]) or 'none'}); write both for each example."
        )
    examples = tuple(zip(texts[::2], texts[1::2], strict=True))
    system = "\n".join(rules).strip()
    if not system and not examples:
        raise UserError(
            f"policy {name} has no text; expected rules, and examples under '## Examples'."
        )
    return PolicyText(name, system, examples, digest or hashlib.sha256(text.encode()).hexdigest())


def with_policy(
    messages: Sequence[Message], policy: PolicyText, default: str = ""
) -> tuple[Message, ...]:
    """The conversation with the policy in its context; `default` is the template's system text."""
    has_own = messages[0].role == "system"
    own = messages[0].text if has_own else default
    system = "\n\n".join(filter(None, (own, policy.system)))
    turns = [
        message
        for asked, answer in policy.examples
        for message in (Message("user", asked), Message("assistant", answer))
    ]
    first = (Message("system", system),) if system else ()
    return (*first, *turns, *messages[has_own:])


def default_system(tokenizer: Tokenizer) -> str:
    """The system message that a chat template writes where a conversation has none; mostly empty."""
    if tokenizer.template is None:
        return ""
    plain = tokenizer.render_text([Message("user", _ASKED)])
    try:
        told = tokenizer.render_text([Message("system", _SYSTEM), Message("user", _ASKED)])
    except UserError as error:
        raise UserError(
            f"the chat template takes no system message ({error}), and a policy is one; use a model "
            "whose template does."
        ) from None
    before, found, after = told.partition(_SYSTEM)
    if not found or not (plain.startswith(before) and plain.endswith(after)):
        return ""
    return plain[len(before) : len(plain) - len(after)]


def check_only_policy(
    tokenizer: Tokenizer, student: Sequence[Message], teacher: Sequence[Message], policy: PolicyText
) -> None:
    """Refuse where teacher and student differ by more than the policy, as the template writes both.

    The teacher's text must be the student's with one piece put in, and the policy in that piece.
    """
    plain, told = tokenizer.render_text(student), tokenizer.render_text(teacher)
    first, last = _alike(plain, told), _alike(plain[::-1], told[::-1])
    if first + last < len(plain) or policy.system.strip() not in told:
        at = plain[first : first + 40]
        raise UserError(
            f"policy {policy.name}: the chat template writes teacher and student differently by more "
            f"than the policy (from {at!r} on), so that other things would be learned too. Give the "
            "tasks a system message of their own, or use another template."
        )


def fit_policy(
    policy: PolicyText, length_of: Callable[[PolicyText], int], room: int, *, allow_truncate: bool
) -> PolicyText:
    """The policy within `room` tokens; refused where it is longer, unless items may be left out.

    Items go from the end: rules by their bullets, then examples.
    """
    size = length_of(policy)
    if size <= room:
        return policy
    if not allow_truncate:
        raise UserError(
            f"policy {policy.name}: the teacher reads {size} tokens with it, and beside the answer "
            f"its context has room for {room}. Shorten the policy or rollout.max_tokens, or allow "
            "train.allow_truncate=true to leave out its last items."
        )
    lines = policy.system.splitlines()
    starts = [i for i, line in enumerate(lines) if _ITEM.match(line)]
    examples = list(policy.examples)
    cut = 0
    while size > room and (len(starts) > 1 or examples):
        if len(starts) > 1:
            lines = lines[: starts.pop()]
        else:
            examples.pop()
        cut += 1
        policy = policy._replace(system="\n".join(lines), examples=tuple(examples), cut=cut)
        size = length_of(policy)
    if size > room:
        raise UserError(
            f"policy {policy.name}: even its first item leaves no room in the teacher's context "
            f"({size} tokens, expected at most {room}). Shorten it."
        )
    return policy


def _alike(one: str, other: str) -> int:
    """How many characters two texts begin with in common."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
