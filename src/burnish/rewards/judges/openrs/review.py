"""A meta-rubric that people improve: a review file of disagreements and proposed items.

    write_review("review.toml", rubric, await trial.failures(rubric), proposals)
    outcome = await apply_review(read_review("review.toml", rubric), rubric, held_out, judge=judge)

The file shows where judge and people disagree, and the proposed items; a person writes
`accept = "yes"`, `"no"` or `"edited"` behind each. An accepted item is kept only where agreement on
held-out pairs rises.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct

from burnish.errors import UserError, did_you_mean
from burnish.records import Response, Reward, Status, Task
from burnish.rewards.combine import BothOrders
from burnish.rewards.judges.instruction import Tried, improve
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.openrs.aggregate import TYPES, type_of
from burnish.rewards.judges.openrs.evolve import (
    Failure,
    Judge,
    P,
    Proposer,
    left_out,
    marked_in_both,
    marks_of,
    mean_mark,
    paired_gain,
)
from burnish.rewards.judges.openrs.judge import OpenRS, Rules
from burnish.rewards.judges.openrs.meta_rubric import (
    Change,
    Item,
    MetaRubric,
    RubricLibrary,
    prompt,
)
from burnish.rewards.judges.prompting import Question, Unreadable, as_user, mark_for, request_of
from burnish.rewards.judges.reading import Maybe, Table, loose_text, one_of, read_marked, rows
from burnish.rewards.scorer import checked, gather
from burnish.texts import read_toml

SHOWN = 1200
"""Characters of a request or a response that a refiner sees."""


class Preference(Struct, frozen=True):
    id: str
    task: Task
    first: Response
    second: Response
    label: int
    """1: the first, -1: the second."""
    domain: str = ""


def random_edits(pool: Sequence[Item], count: int = 6) -> Proposer[Any]:
    """Edits drawn by chance: add an item of the pool, drop one, or take another form of one.

    Items of the pool that share a title are forms of the same item (another type, another text).
    """
    forms: dict[str, list[Item]] = {}
    for item in pool:
        forms.setdefault(item.title, []).append(item)

    async def propose(
        rubric: MetaRubric, failures: Sequence[Failure[Any]], rng: random.Random
    ) -> list[Change]:
        return [change for _ in range(count) if (change := _drawn(rubric, forms, rng))]

    return propose


def refiner(judge: JudgeModel, *, most: int = 6, cases: int = 8) -> Proposer[Preference]:
    """Edits from a model that reads the rubric and some of the pairs that it gets wrong.

    It sees which response people prefer: give it pairs to learn from, never those to decide on.
    An unreadable reply gives no edits.
    """

    async def propose(
        rubric: MetaRubric, failures: Sequence[Failure[Preference]], rng: random.Random
    ) -> list[Change]:
        chosen = rng.sample(list(failures), min(cases, len(failures)))
        if not chosen:
            return []
        shown = "\n\n".join(_case(number, one) for number, one in enumerate(chosen, 1))
        mark = mark_for(rubric.render(), shown)
        text = prompt(
            "refine",
            rubric.language,
            mark,
            rubric=rubric.as_prompt(),
            cases=shown,
            most=str(most),
        )
        about = (rubric.hash, *(one.pair.id for one in chosen))
        media = [part for one in chosen for part in one.pair.task.media]
        question = Question("openrs refine", as_user(text, media, mark), about)
        judge_reply = await judge.ask(question, partial(read_edits, rubric=rubric, mark=mark))
        return (judge_reply.verdict or [])[:most]

    return propose


def judge_of(
    judge: JudgeModel,
    library: RubricLibrary | None = None,
    *,
    rules: Rules | None = None,
    limit: int = 16,
) -> Judge[Preference]:
    """OpenRS in both orders as a judge that follows any rubric; orders that disagree are a tie."""
    shelf = RubricLibrary.shipped() if library is None else library

    async def score(rubric: MetaRubric, pairs: Sequence[Preference]) -> list[float | None]:
        one_order = OpenRS(judge, rubrics=shelf.with_rubric(rubric), rules=rules)
        scorer = BothOrders(one_order)
        calls = [partial(checked, scorer, pair.task, [pair.first, pair.second]) for pair in pairs]
        return [_score(both[0]) for both in await gather(calls, limit=limit)]

    return score


class Proposal(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One change as a refiner's reply or a review file holds it."""

    kind: Literal["add", "delete", "modify"]
    accept: str = ""
    old: str = ""
    type: str = ""
    title: str = ""
    text: str = ""
    why: str = ""
    """A note for the person, or by the person."""

    def change(self, rubric: MetaRubric) -> Change:
        """The change to this rubric; a `ValueError` says why there is none."""
        titles = {item.title: item for item in rubric.items}
        before = None if self.kind == "add" else titles.get(self.old.strip())
        if self.kind != "add" and before is None:
            raise ValueError(
                f"old is '{self.old}'; expected the title of an item of the rubric."
                f"{did_you_mean(self.old, titles)}"
            )
        if self.kind == "delete":
            return Change("delete", before)
        kind = type_of(self.type or (before.type if before else ""))
        title = " ".join((self.title or (before.title if before else "")).split())
        text = " ".join(self.text.split())
        if kind not in TYPES or not title.strip(". ") or not text.strip(". "):
            raise ValueError(
                f"type '{self.type}', title '{self.title}', text '{self.text[:40]}'; expected one "
                f"of {', '.join(TYPES)}, a title and a text.{did_you_mean(kind, TYPES)}"
            )
        return Change(self.kind, before, Item(kind, title, text))


_EDIT = Table(
    Proposal,
    open=True,
    kind=one_of("add", "delete", "modify"),
    **dict.fromkeys(("old", "type", "title", "text"), Maybe(loose_text)),
)
_EDITS = Table(lambda edits: edits, open=True, edits=rows(_EDIT))


def read_edits(reply: str, rubric: MetaRubric, mark: str | None = None) -> list[Change]:
    """The edits of a refiner's reply; `Unreadable` names the first that makes no sense."""
    changes: list[Change] = []
    for place, edit in enumerate(read_marked(reply, mark, _EDITS), 1):
        try:
            changes.append(edit.change(rubric))
        except ValueError as error:
            raise Unreadable(f"edit {place}: {error}") from None
    return changes


def _drawn(
    rubric: MetaRubric, forms: Mapping[str, Sequence[Item]], rng: random.Random
) -> Change | None:
    """One random edit; None where the drawn kind has nothing to do."""
    titles = {item.title for item in rubric.items}
    absent = [title for title in forms if title not in titles]
    kind = rng.choice(("add", "add", "modify", "delete"))
    if kind == "add" and absent:
        return Change("add", None, rng.choice(forms[rng.choice(absent)]))
    if kind == "add" or not rubric.items:
        return None
    before = rng.choice(rubric.items)
    if kind == "delete":
        return Change("delete", before)
    others = [item for item in forms.get(before.title, ()) if item != before]
    return Change("modify", before, rng.choice(others)) if others else None


def _case(number: int, failure: Failure[Preference]) -> str:
    pair = failure.pair
    preferred = "1" if pair.label > 0 else "2"
    score = failure.score
    said = "no verdict" if score is None else "a tie" if not score else "12"[score < 0]
    texts = (request_of(pair.task), pair.first.text, pair.second.text)
    request, first, second = (text[:SHOWN] for text in texts)
    return (
        f"Case {number}. Request: {request}\nResponse 1: {first}\nResponse 2: {second}\n"
        f"People prefer: {preferred}. The judge said: {said}."
    )


def _score(reward: Reward) -> float | None:
    return 0.0 if reward.status is Status.ABSTAIN else reward.value


SHOWN_TO_PEOPLE = 2000
"""Characters of a text that the file shows."""
ANSWERS = ("yes", "no", "edited")

_HEAD = """\
# Review of the rubric '{domain}' ({language}).
# Read the disagreements, then decide on each [[proposal]] at the end:
#   accept = "yes"      as it stands
#   accept = "no"       not at all
#   accept = "edited"   with your changes to type, title or text
# You may add [[proposal]] tables of your own with accept = "edited"; kinds: add, delete, modify
# ("old" names the item that goes or changes). Types: critical, core, important, highlight.
"""


class Review(Struct, frozen=True):
    rubric: str
    """Hash of the rubric that was reviewed."""
    accepted: tuple[Change, ...]
    refused: tuple[Proposal, ...]


class Kept(Struct, frozen=True):
    change: Change
    kept: bool
    before: float
    after: float
    """Agreement with people on the held-out pairs that both decide, without and with the change."""
    standard_error: float
    reason: str
    left_out: int = 0
    """Pairs without a verdict under one of the two."""


class ReviewOutcome(Struct, frozen=True):
    """The rubric after a review, and why each item is in it or not; JSON-able."""

    rubric: MetaRubric
    start: MetaRubric
    log: tuple[Kept, ...]

    def report(self) -> str:
        """The changes as a diff and the figure behind each, for the record."""
        lines = [f"# Rubric {self.start.hash} -> {self.rubric.hash}"]
        for one in self.log:
            word = "kept" if one.kept else "left out"
            lines += ["", f"## {word}: {one.reason}", "", "```diff", str(one.change), "```"]
        return "\n".join([*lines, ""])


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    rubric: str
    domain: str = ""
    disagreement: tuple[dict[str, Any], ...] = ()
    proposal: tuple[Proposal, ...] = ()


def write_review(
    path: str | Path,
    rubric: MetaRubric,
    disagreements: Iterable[Failure[Preference]],
    proposals: Sequence[Change],
) -> None:
    """Write the file; one that is there already, and may hold a person's work, is not replaced."""
    lines = [_HEAD.replace("{domain}", rubric.domain).replace("{language}", rubric.language)]
    lines += [f"rubric = {_quoted(rubric.hash)}", f"domain = {_quoted(rubric.domain)}"]
    ordered = sorted(disagreements, key=lambda one: (one.pair.domain, one.pair.id))
    for domain, group in groupby(ordered, key=lambda one: one.pair.domain):
        members = list(group)
        lines += ["", f"# {len(members)} disagreements in {_comment(domain or rubric.domain)}"]
        for one in members:
            lines += ["", "[[disagreement]]", *_disagreement(one)]
    for change in proposals:
        lines += ["", "[[proposal]]", *_proposal(change)]
    try:
        with Path(path).open("x", encoding="utf-8") as file:
            file.write("\n".join([*lines, ""]))
    except FileExistsError:
        raise UserError(
            f"{path} is there already and may hold somebody's review; give another name or move it."
        ) from None
    except OSError as error:
        raise UserError(f"{path}: cannot write the review: {error}") from None


def read_review(path: str | Path, rubric: MetaRubric) -> Review:
    """The decisions of an edited file; one line about the first thing that is wrong with it."""
    try:
        table = read_toml(Path(path).read_text(encoding="utf-8-sig"))
        file = msgspec.convert(table, _File)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{path}: cannot read the review: {error}") from None
    except msgspec.ValidationError as error:
        raise UserError(f"{path}: {error}") from None
    if file.rubric != rubric.hash:
        raise UserError(
            f"{path}: reviews the rubric {file.rubric}, but this one is {rubric.hash}; write a new "
            "review, or load the rubric that was reviewed."
        )
    accepted: list[Change] = []
    refused: list[Proposal] = []
    for number, proposal in enumerate(file.proposal, 1):
        where = f"{path}: proposal {number}"
        answer = proposal.accept.strip().lower()
        if answer not in ANSWERS:
            raise UserError(
                f'{where}: accept is "{proposal.accept}"; expected {", ".join(ANSWERS)}.'
                f"{did_you_mean(answer, ANSWERS)}"
            )
        if answer == "no":
            refused.append(proposal)
        else:
            try:
                accepted.append(proposal.change(rubric))
            except ValueError as error:
                raise UserError(f"{where}: {error}") from None
    return Review(file.rubric, tuple(accepted), tuple(refused))


async def apply_review(
    review: Review,
    rubric: MetaRubric,
    held_out: Sequence[P],
    *,
    judge: Judge[P],
    standard_errors: float = 0.0,
) -> ReviewOutcome:
    """Keep each accepted change where agreement on `held_out` rises, on top of those kept before.

    `standard_errors` asks for a rise of more than so many; by default any rise is enough, because a
    person has looked at the item. A pair on which the judge failed under either rubric is left out
    of their comparison; too many of those end the review.
    """
    if not held_out:
        raise UserError("a review needs held-out pairs to keep its items; got none.")

    async def propose(now: _Marked, number: int, place: int) -> Sequence[Change]:
        return review.accepted

    async def attempt(now: _Marked, change: Change, number: int) -> Tried[_Marked, Kept]:
        try:
            changed = now.rubric.applied(change)
        except ValueError as error:
            agreed = mean_mark(now.marks)
            return Tried(Kept(change, False, agreed, agreed, 0.0, f"does not fit: {error}"))
        marks = marks_of(await judge(changed, held_out), held_out)
        before, after = marked_in_both(now.marks, marks)
        missing = len(marks) - len(before)
        gain, error_of_gain = paired_gain(before, after)
        kept = gain > standard_errors * error_of_gain + 1e-12
        old, new = mean_mark(before), mean_mark(after)
        reason = f"held-out agreement {old:.4f} -> {new:.4f} on {len(before)} pairs"
        reason += left_out(missing)
        record = Kept(change, kept, old, new, error_of_gain, reason, missing)
        return Tried(record, _Marked(changed, marks) if kept else None)

    start = _Marked(rubric, marks_of(await judge(rubric, held_out), held_out))
    found = await improve(start, propose, attempt, rounds=1, patience=1)
    return ReviewOutcome(found.beam[0].rubric, rubric, tuple(found.log))


class _Marked(NamedTuple):
    rubric: MetaRubric
    marks: list[float | None]


def _disagreement(one: Failure[Preference]) -> list[str]:
    pair = one.pair
    said = "no verdict" if one.score is None else f"{one.score:+.3g}"
    people = "response_1" if pair.label > 0 else "response_2"
    fields = {
        "id": pair.id,
        "people_prefer": people,
        "judge_score": f"{said} (above 0: response_1)",
        "request": request_of(pair.task)[:SHOWN_TO_PEOPLE],
        "response_1": pair.first.text[:SHOWN_TO_PEOPLE],
        "response_2": pair.second.text[:SHOWN_TO_PEOPLE],
    }
    return [f"{key} = {_quoted(value)}" for key, value in fields.items()]


def _proposal(change: Change) -> list[str]:
    fields: dict[str, str] = {"kind": change.kind}
    if change.before is not None:
        fields["old"] = change.before.title
    if change.after is not None:
        fields |= {
            "type": change.after.type,
            "title": change.after.title,
            "text": change.after.text,
        }
    return [f"{key} = {_quoted(value)}" for key, value in fields.items()] + ['accept = ""']


def _quoted(text: str) -> str:
    """A TOML basic string on one line; half a character (a lone surrogate) becomes a mark."""
    whole = text.encode("utf-8", "replace").decode()
    return msgspec.json.encode(whole).decode().replace("\x7f", "\\u007f")


def _comment(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
