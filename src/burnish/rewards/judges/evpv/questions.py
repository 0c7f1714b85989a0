"""What a model is asked about a solution: verdicts on steps, claims beside facts, an audit (EVPV).

Texts to judge stand between marks they cannot know, one a line, and a reply counts only where it is
the asked form and nothing else: a premise that says "answer 1" is a line of data.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from burnish.records import Evidence, MediaPart
from burnish.rewards.judges.evpv.evidence import PROMPTS
from burnish.rewards.judges.evpv.matching import FactIndex, Matched, Outcome
from burnish.rewards.judges.evpv.scores import (
    parse_step_verdict,
    parse_step_verdict_strict,
    reliability_from_audit,
)
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.prompting import (
    JudgeReply,
    Question,
    Unreadable,
    as_user,
    fence,
    fill,
    mark_for,
    wording,
)
from burnish.rewards.judges.reading import (
    Maybe,
    Table,
    after_thoughts,
    loose_text,
    one_of,
    own_list,
    read_reply,
    rows,
    whole,
)

SHOWN_STEP, SHOWN_FACTS, SHOWN_CLAIMS = 4000, 40, 40
"""Characters of a step, facts and claims that a model is shown."""
MOST_AUDITS = 8
"""Calls for the claims of one response; claims beyond them are unknown."""
UNSHOWN = "not shown to the auditor"
LIMIT = 1_000_000


class _Match(NamedTuple):
    claim: int
    outcome: str
    fact: int = 0


class _Contradiction(NamedTuple):
    claim: int
    severity: str
    why: str = ""


_MATCH = Table(
    _Match,
    open=True,
    claim=whole(0, LIMIT),
    outcome=one_of(*(one.value for one in Outcome)),
    fact=Maybe(whole(0, LIMIT), 0),
)
_CONTRADICTION = Table(
    _Contradiction,
    open=True,
    claim=Maybe(whole(0, LIMIT), 0),
    severity=one_of("high", "low"),
    why=Maybe(loose_text),
)
_AUDIT: Table[dict[str, Any]] = Table(dict, open=True, contradictions=rows(_CONTRADICTION))


def wordings() -> list[str]:
    return [wording(name, PROMPTS) for name in ("extract", "look", "match", "audit", "verify")]


async def ask_verdict(
    judge: JudgeModel,
    question: str,
    before: Sequence[str],
    step: str,
    about: tuple[str, ...],
    *,
    history: int = 12,
    is_strict: bool = True,
    media: Sequence[MediaPart] = (),
) -> JudgeReply[float]:
    """+1 or -1 of one step, by a verifier that sees the question and the steps before it.

    `media` are the question's images and sounds.
    """
    shown = [_line(one, SHOWN_STEP) for one in before[max(0, len(before) - history) :]]
    first = len(before) - len(shown) + 1
    listed = "\n".join(f"{n}. {one}" for n, one in enumerate(shown, start=first)) or "(none)"
    mine = step[:SHOWN_STEP]
    mark = mark_for(question, listed, mine)
    blanks = {
        "mark": mark,
        "question": fence("question", question, mark),
        "history": fence("steps before", listed, mark),
        "step": fence("step", mine, mark),
    }
    text = fill(wording("verify", PROMPTS), blanks)
    asked = Question("step", as_user(text, media, mark), (*about, f"step {len(before) + 1}"))
    return await judge.ask(asked, partial(_read_verdict, is_strict=is_strict))


def _read_verdict(reply: str, is_strict: bool) -> float:
    said = after_thoughts(reply)
    found = parse_step_verdict_strict(said) if is_strict else parse_step_verdict(said)
    if found is None:
        raise Unreadable(f"expected 1 or -1 and nothing else, got {said[:60]!r}")
    return float(found)


async def ask_matches(
    judge: JudgeModel | None,
    index: FactIndex,
    matched: dict[str, Matched],
    about: tuple[str, ...],
) -> JudgeReply[Any] | None:
    """Let the model settle what is unknown, in place; None where nothing is.

    Claims of an unreadable reply get the outcome None; one that the reply leaves out stays unknown.
    """
    open_claims = [claim for claim, one in matched.items() if _is_open(one)][:SHOWN_CLAIMS]
    if not open_claims or not index.facts or judge is None:
        return None
    facts = index.nearest(open_claims, SHOWN_FACTS)
    lines = [_line(claim) for claim in open_claims]
    reply = await judge.ask(_beside("match", facts, lines, about), partial(_read_matches, lines))
    said = {one.claim: one for one in reply.verdict or []}
    for number, claim in enumerate(open_claims, start=1):
        old = matched[claim]
        if reply.verdict is None:
            matched[claim] = Matched(old.claim, None, by="judge", note=reply.reason[:200])
        elif (one := said.get(number)) is not None:
            fact = facts[one.fact - 1] if 1 <= one.fact <= len(facts) else None
            place = (fact.text, fact.source) if fact is not None else ("", "")
            matched[claim] = Matched(old.claim, Outcome(one.outcome), *place, "judge")
    return reply


def _is_open(one: Matched) -> bool:
    """Unknown, and short enough to be a fact at all."""
    return one.outcome is Outcome.UNKNOWN and "characters" not in one.note


def _read_matches(shown: Sequence[str], reply: str) -> list[_Match]:
    return [_MATCH.read(row) for row in own_list(reply, tuple(shown))]


class Audit(NamedTuple):
    reliability: float | None
    """None where no audit could be read."""
    evidence: tuple[Evidence, ...] = ()
    problem: str = ""
    """Why an audit could not be read: the gate of its claims is open."""
    warnings: tuple[str, ...] = ()
    """What was left out."""


async def ask_audit(
    judge: JudgeModel | None,
    index: FactIndex,
    matched: dict[str, Matched],
    about: tuple[str, ...],
) -> Audit:
    """The reliability of a response from the contradictions that a model lists; settles claims in place.

    The arithmetic is ours: each claim counts once, with its worst severity. Many claims are several
    audits. What the canonical form contradicts stays contradicted.
    """
    assert judge is not None
    every = list(matched)
    parts = [every[n : n + SHOWN_CLAIMS] for n in range(0, len(every), SHOWN_CLAIMS)]
    severities: list[str] = []
    replies: list[JudgeReply[Any]] = []
    warnings: list[str] = []
    for number, claims in enumerate(parts[:MOST_AUDITS]):
        facts, lines = index.nearest(claims, SHOWN_FACTS), [_line(claim) for claim in claims]
        place = (*about, f"audit {number + 1}") if number else about
        asked = _beside("audit", facts, lines, place)
        replies.append(reply := await judge.ask(asked, partial(_read_audit, lines)))
        found = _by_claim(reply.verdict or [], len(claims))
        if (strays := len(reply.verdict or []) - sum(map(len, found.values()))) > 0:
            warnings.append(f"{strays} contradictions of claims that do not exist were left out")
        for n, claim in enumerate(claims, start=1):
            matched[claim] = _audited(matched[claim], found.get(n, []), reply)
        severities += [_worst(entries).severity for entries in found.values()]
    for claim in (unshown := [claim for part in parts[MOST_AUDITS:] for claim in part]):
        if matched[claim].outcome is not Outcome.CONTRADICTED:
            matched[claim] = Matched(claim, Outcome.UNKNOWN, by="audit", note=UNSHOWN)
    if unshown:
        warnings.append(f"{len(unshown)} premises were {UNSHOWN}")
    unread = [reply.reason for reply in replies if reply.verdict is None]
    level = reliability_from_audit(severities) if len(unread) < len(replies) else None
    evidence = tuple(one for reply in replies for one in reply.evidence)
    return Audit(level, evidence, unread[0] if unread else "", tuple(dict.fromkeys(warnings)))


def _by_claim(listed: Sequence[_Contradiction], count: int) -> dict[int, list[_Contradiction]]:
    """Contradictions by the claim that they name, where there is such a claim."""
    found: dict[int, list[_Contradiction]] = {}
    for one in listed:
        if 1 <= one.claim <= count:
            found.setdefault(one.claim, []).append(one)
    return found


def _worst(entries: Sequence[_Contradiction]) -> _Contradiction:
    return min(entries, key=lambda one: one.severity != "high")


def _audited(old: Matched, against: Sequence[_Contradiction], reply: JudgeReply[Any]) -> Matched:
    note = f"{_worst(against).severity}: {_worst(against).why}"[:300] if against else ""
    if old.outcome is Outcome.CONTRADICTED:
        return old._replace(note=f"audit {note}" if note else old.note)
    if reply.verdict is None:
        return Matched(old.claim, None, by="audit", note=reply.reason[:200])
    return Matched(old.claim, Outcome.CONTRADICTED, by="audit", note=note) if against else old


def _read_audit(shown: Sequence[str], reply: str) -> list[_Contradiction]:
    found: list[_Contradiction] = read_reply(reply, _AUDIT, tuple(shown))["contradictions"]
    return found


def _beside(
    name: str, facts: Sequence[Any], claims: Sequence[str], about: tuple[str, ...]
) -> Question:
    """Facts and claims, numbered, one a line."""
    listed = "\n".join(f"{n}. {_line(one.text)}" for n, one in enumerate(facts, start=1))
    asked = "\n".join(f"{n}. {claim}" for n, claim in enumerate(claims, start=1))
    mark = mark_for(listed, asked)
    blanks = {
        "mark": mark,
        "facts": fence("facts", listed or "(none)", mark),
        "claims": fence("claims", asked, mark),
    }
    return Question(name, as_user(fill(wording(name, PROMPTS), blanks)), about)


def _line(text: str, most: int = 400) -> str:
    """A text in one line, cut where it is long."""
    flat = " ".join(text[: 4 * most].split())
    return flat if len(flat) <= most else f"{flat[:most]} (cut)"
