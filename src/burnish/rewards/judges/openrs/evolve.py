"""A meta-rubric that is improved on pairs with known preferences: beam search over small edits.

A child is accepted only where it beats its parent on the same pairs by more than one standard error,
and the beam keeps the fittest on a bootstrap of the pairs, less a price per item. What comes out is
decided once, on pairs that the search never saw. OpenRS describes such a search but did not release
one (arXiv 2602.14069, section on refinement); the numbers and the two tests here are ours.

People improve a rubric by a review file: it shows where judge and people disagree, and proposed items;
a person writes `accept = "yes"`, `"no"` or `"edited"` behind each.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import Meta, Struct

from burnish.arguments import as_word, same_length
from burnish.boundary import NonNegative, Number, PositiveInt, Settings, public
from burnish.errors import JudgeError, UserError, did_you_mean
from burnish.records import Response, Status, Task
from burnish.rewards.combine import BothOrders
from burnish.rewards.judges.instruction import Tried, check_apart, improve
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.openrs.judge import OpenRS, Rules
from burnish.rewards.judges.openrs.meta_rubric import (
    TYPES,
    Change,
    Item,
    MetaRubric,
    RubricLibrary,
    prompt,
    type_of,
)
from burnish.rewards.judges.prompting import Question, Unreadable, as_user, mark_for, request_of
from burnish.rewards.judges.reading import Maybe, Table, loose_text, one_of, read_marked, rows
from burnish.rewards.scorer import checked, gather
from burnish.seeds import Seeds
from burnish.texts import read_toml

ITEM_COST = 0.002
"""What each item takes off the fitness."""
MOST_FAILURES = 0.2
"""Share of pairs without a verdict above which a comparison stops: what is left may not be fair."""


class LabelledPair(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def label(self) -> int:
        """1: people prefer the first response, -1: the second."""


def mark_of_score(score: float | None, label: int) -> float | None:
    """1: the preferred response won, 0: it lost, 0.5: a tie; None: there is no verdict."""
    if score is None or math.isnan(score):
        return None
    return 0.5 if score == 0 else float((score > 0) == (label > 0))


def marks_of(scores: Sequence[float | None], pairs: Sequence[LabelledPair]) -> list[float | None]:
    same_length("scores of the judge", scores, len(pairs), "pairs")
    marks = [mark_of_score(s, pair.label) for s, pair in zip(scores, pairs, strict=True)]
    missing = marks.count(None)
    if missing > MOST_FAILURES * len(marks):
        first = pairs[marks.index(None)].id
        raise JudgeError(
            f"the judge gave no verdict on {missing} of {len(marks)} pairs (the first is '{first}'); "
            f"expected at most {MOST_FAILURES:.0%}. Look into its record for the reason and start again."
        )
    return marks


def marked_in_both(
    before: Sequence[float | None], after: Sequence[float | None]
) -> tuple[list[float], list[float]]:
    """The marks of the pairs that have one under both rubrics."""
    both = [(b, a) for b, a in zip(before, after, strict=True) if b is not None and a is not None]
    return [b for b, _ in both], [a for _, a in both]


def mean_mark(marks: Sequence[float | None]) -> float:
    """The mean over the pairs that have a mark."""
    known = [mark for mark in marks if mark is not None]
    return math.fsum(known) / len(known)


def left_out(count: int) -> str:
    """What a report says of pairs without a verdict; nothing where there are none."""
    return f", {count} pairs without a verdict left out" if count else ""


def paired_gain(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """Mean difference on the same pairs and its standard error."""
    differences = [b - a for a, b in zip(before, after, strict=True)]
    count = len(differences)
    mean = math.fsum(differences) / count
    if count < 2:
        return mean, math.inf
    squares = math.fsum((d - mean) ** 2 for d in differences)
    return mean, math.sqrt(squares / (count - 1) / count)


def sign_test(before: Sequence[float], after: Sequence[float]) -> float:
    """Exact one-sided p-value that so many pairs got better rather than worse by chance."""
    better = sum(b > a for a, b in zip(before, after, strict=True))
    worse = sum(b < a for a, b in zip(before, after, strict=True))
    count = better + worse
    return sum(math.comb(count, k) for k in range(better, count + 1)) / (1 << count)


P = TypeVar("P", bound=LabelledPair)

Judge = Callable[[MetaRubric, Sequence[P]], Awaitable[Sequence[float | None]]]
"""The score of each pair under a rubric: above 0 for the first response; None: no verdict."""


class Failure(NamedTuple, Generic[P]):
    """A pair that a rubric gets wrong."""

    pair: P
    score: float | None


class Trial(Generic[P]):
    """Marks of rubrics, each asked for once."""

    def __init__(self, judge: Judge[P], dev: Sequence[P], choice: Sequence[P] = ()) -> None:
        self.judge, self.pairs = judge, {False: dev, True: choice}
        self.scores: dict[tuple[str, bool], Sequence[float | None]] = {}
        self.known: dict[tuple[str, bool], list[float | None]] = {}

    async def compared(
        self, old: MetaRubric, new: MetaRubric, is_final: bool = False
    ) -> tuple[list[float], list[float], int]:
        """The marks of the pairs that have one under both, and how many have not."""
        marks = await self.marks(old, is_final)
        before, after = marked_in_both(marks, await self.marks(new, is_final))
        return before, after, len(marks) - len(before)

    async def tried(
        self, parent: MetaRubric, change: Change, generation: int, *, is_sure: bool = True
    ) -> Tried[MetaRubric, Step]:
        """A change, accepted where it gains on the same pairs; `is_sure`: by more than one standard
        error, and not where the log has its rubric already."""
        try:
            child = parent.applied(change)
        except ValueError as error:
            return Tried(Step(generation, parent.hash, change, False, f"does not fit: {error}"))
        if is_sure and (child.hash, False) in self.known:
            return Tried(None)
        before, after, missing = await self.compared(parent, child)
        gain, error_of_gain = paired_gain(before, after)
        # Rounding must not decide: a gain of exactly the bar is not more than the bar.
        accepted = gain > error_of_gain * is_sure + 1e-12
        reason = (
            f"accuracy {mean_mark(before):.4f} -> {mean_mark(after):.4f} on {len(before)} pairs"
            f"{left_out(missing)}, standard error {error_of_gain:.4f}"
        )
        edit = (generation, parent.hash, change, accepted)
        step = Step(*edit, reason, gain, error_of_gain, child.hash, missing)
        return Tried(step, child if accepted else None)

    async def marks(self, rubric: MetaRubric, is_final: bool = False) -> list[float | None]:
        key = (rubric.hash, is_final)
        if key not in self.known:
            pairs = self.pairs[is_final]
            self.scores[key] = await self.judge(rubric, pairs)
            self.known[key] = marks_of(self.scores[key], pairs)
        return self.known[key]

    async def failures(self, rubric: MetaRubric) -> list[Failure[P]]:
        """Pairs with a verdict that is not right; where the judge failed, the rubric did not."""
        marks = await self.marks(rubric)
        found = zip(self.pairs[False], self.scores[rubric.hash, False], marks, strict=True)
        return [Failure(pair, score) for pair, score, mark in found if mark in (0.0, 0.5)]


Proposer = Callable[[MetaRubric, Sequence[Failure[P]], random.Random], Awaitable[Sequence[Change]]]
"""Edits for a rubric, from the pairs that it gets wrong."""


class Search(Settings, frozen=True, kw_only=True):
    """How widely to search and when to believe a gain."""

    beam: PositiveInt = 4
    proposals: PositiveInt = 6
    """Edits tried on each rubric of the beam in each generation."""
    generations: PositiveInt = 8
    patience: PositiveInt = 8
    """Generations in a row without an accepted edit after which the search ends."""
    level: Annotated[float, Meta(gt=0.0, lt=1.0)] = 0.05
    """Greatest chance of replacing the start by a rubric that is no better."""


class Step(Struct, frozen=True, omit_defaults=True):
    """One edit that was tried and what became of it."""

    generation: int
    parent: str
    """Hash of the rubric that was changed."""
    change: Change
    accepted: bool
    reason: str
    gain: float = 0.0
    """Accuracy of the child less that of its parent, on the same pairs."""
    standard_error: float = 0.0
    child: str = ""
    left_out: int = 0
    """Pairs without a verdict under one of the two."""


class Final(Struct, frozen=True):
    """A rubric of the last beam against the start, on the untouched pairs that both decide."""

    rubric: str
    accuracy: float
    start_accuracy: float
    p_value: float
    """One-sided, exact: the chance of so many more pairs put right than spoilt."""
    left_out: int = 0
    """Pairs without a verdict under one of the two."""


class RubricEvolution(Struct, frozen=True):
    """The rubric that came out and the whole way to it; JSON-able."""

    rubric: MetaRubric
    start: MetaRubric
    dev_accuracy: float
    """Of the rubric that came out, on the pairs it was searched on: too good by selection."""
    choice_accuracy: float
    """On the pairs that decided."""
    finals: tuple[Final, ...]
    log: tuple[Step, ...]
    generations: int
    missing: int = 0
    """Verdicts that the judge did not give, over all rubrics; nothing stands in their place."""

    @property
    def is_changed(self) -> bool:
        return self.rubric.hash != self.start.hash

    def report(self, *, with_refused: bool = True) -> str:
        """The changes as a diff, what was tried, and the figures, for a person to review."""
        accepted = [step for step in self.log if step.accepted]
        lines = [
            f"{len(self.log)} edits tried in {self.generations} generations, {len(accepted)} "
            f"accepted; accuracy {self.dev_accuracy:.4f} where it was searched, "
            f"{self.choice_accuracy:.4f} on the untouched pairs; {self.missing} verdicts missing.",
            "",
            "```diff",
            *(str(change) for change in self.start.diff(self.rubric)),
            "```",
        ]
        return _report(self.start, self.rubric, lines, self.log if with_refused else accepted)


def _report(
    start: MetaRubric, rubric: MetaRubric, lines: Sequence[str], log: Sequence[Step]
) -> str:
    found = [f"# Rubric {start.hash} -> {rubric.hash}", "", *lines]
    for step in log:
        mark = "accepted" if step.accepted else "refused"
        found += ["", f"## Generation {step.generation}, {step.parent}: {mark}, {step.reason}"]
        found += ["", "```diff", str(step.change), "```"]
    return "\n".join([*found, ""])


async def evolve_rubric(
    start: MetaRubric,
    dev: Sequence[P],
    choice: Sequence[P],
    *,
    judge: Judge[P],
    propose: Proposer[P],
    search: Search | None = None,
    seed: int = 0,
) -> RubricEvolution:
    """Search on `dev`, decide on `choice`; the start stays unless a rubric is surely better.

    The final test is exact and shared among the rubrics of the last beam, so that a judge that does
    not care about the rubric leaves it unchanged in at least 1 - `level` of all runs.
    """
    plan = Search() if search is None else search
    check_apart(dev, choice)
    trial, seeds = Trial(judge, dev, choice), Seeds(seed)
    await trial.marks(start)

    async def edits(parent: MetaRubric, number: int, place: int) -> Sequence[Change]:
        rng = seeds.rng("propose", number, place)
        return (await propose(parent, await trial.failures(parent), rng))[: plan.proposals]

    async def fittest(rubrics: list[MetaRubric], number: int) -> list[MetaRubric]:
        drawn = seeds.rng("bootstrap", number).choices(range(len(dev)), k=len(dev))
        fitness = {}
        for rubric in rubrics:
            marks = await trial.marks(rubric)
            chosen = [marks[i] for i in drawn if marks[i] is not None]
            # A draw may hit nothing but pairs without a verdict where there are very few pairs.
            fitness[rubric.hash] = mean_mark(chosen or marks) - ITEM_COST * len(rubric.items)
        return sorted(rubrics, key=lambda r: -fitness[r.hash])[: plan.beam]

    found = await improve(
        start, edits, trial.tried, rounds=plan.generations, patience=plan.patience, choose=fittest
    )
    finals, chosen = await _choose(start, found.beam, trial, plan.level)
    return RubricEvolution(
        chosen,
        start,
        mean_mark(await trial.marks(chosen)),
        mean_mark(await trial.marks(chosen, is_final=True)),
        finals,
        tuple(found.log),
        found.rounds,
        sum(marks.count(None) for marks in trial.known.values()),
    )


@public
def asymmetric_advantages(
    rewards: Sequence[Number], parent: Number, kappa: NonNegative = 0.1
) -> list[float]:
    """What a refiner learns from a group of edits: mostly from those that improve on the parent.

    A_i = max(0, r_i - max(mean r, parent)) + kappa * min(0, r_i - mean r) * [max r > parent]: where
    every edit hurts, nothing is learned, not even from the least bad one.
    """
    if not rewards:
        return []
    mean = math.fsum(rewards) / len(rewards)
    helps = max(rewards) > parent
    bar = max(mean, parent)
    return [max(0.0, r - bar) + (kappa * min(0.0, r - mean) if helps else 0.0) for r in rewards]


async def _choose(
    start: MetaRubric, beam: Sequence[MetaRubric], trial: Trial[Any], level: float
) -> tuple[tuple[Final, ...], MetaRubric]:
    """The best of the beam on the untouched pairs, or the start where none is surely better."""
    rivals = [rubric for rubric in beam if rubric.hash != start.hash]
    finals: list[Final] = []
    for rubric in rivals:
        before, after, missing = await trial.compared(start, rubric, is_final=True)
        means = mean_mark(after), mean_mark(before)
        finals.append(Final(rubric.hash, *means, sign_test(before, after), missing))
    sure = [
        (final.accuracy - final.start_accuracy, rubric)
        for final, rubric in zip(finals, rivals, strict=True)
        if final.p_value <= level / len(rivals)
    ]
    best = max(sure, key=lambda found: found[0])[1] if sure else start
    return tuple(finals), best


# Proposers, and a judge that follows any rubric.

JUDGED = 16
"""Pairs that are judged at a time."""
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

    def drawn(rubric: MetaRubric, rng: random.Random) -> Change | None:
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

    async def propose(
        rubric: MetaRubric, failures: Sequence[Failure[Any]], rng: random.Random
    ) -> list[Change]:
        return [change for _ in range(count) if (change := drawn(rubric, rng))]

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
        blanks = {"rubric": rubric.as_prompt(), "cases": shown, "most": str(most)}
        text = prompt("refine", rubric.language, mark, **blanks)
        about = (rubric.hash, *(one.pair.id for one in chosen))
        media = [part for one in chosen for part in one.pair.task.media]
        question = Question("openrs refine", as_user(text, media, mark), about)
        judge_reply = await judge.ask(question, partial(read_edits, rubric=rubric, mark=mark))
        return (judge_reply.verdict or [])[:most]

    return propose


def judge_of(
    judge: JudgeModel, library: RubricLibrary | None = None, *, rules: Rules | None = None
) -> Judge[Preference]:
    """OpenRS in both orders as a judge that follows any rubric; orders that disagree are a tie."""
    shelf = RubricLibrary.shipped() if library is None else library

    async def score(rubric: MetaRubric, pairs: Sequence[Preference]) -> list[float | None]:
        one_order = OpenRS(judge, rubrics=shelf.with_rubric(rubric), rules=rules)
        scorer = BothOrders(one_order)
        calls = [partial(checked, scorer, pair.task, [pair.first, pair.second]) for pair in pairs]
        rewards = [both[0] for both in await gather(calls, limit=JUDGED)]
        return [0.0 if one.status is Status.ABSTAIN else one.value for one in rewards]

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
        now = before or Item("", "", "")
        kind = type_of(self.type or now.type)
        title, text = (" ".join(one.split()) for one in (self.title or now.title, self.text))
        is_item = kind in TYPES and title.strip(". ") and text.strip(". ")
        if (before is None and self.kind != "add") or not (is_item or self.kind == "delete"):
            given = (
                f"old '{self.old}', type '{self.type}', title '{self.title}', text '{text[:40]}'"
            )
            raise ValueError(
                f"got {given}; expected the title of an item of the rubric as old, and as the new item one "
                f"of {', '.join(TYPES)}, a title and a text.{did_you_mean(kind, TYPES)}"
                f"{did_you_mean(self.old, titles)}"
            )
        return Change(self.kind, before, None if self.kind == "delete" else Item(kind, title, text))


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
    accepted: tuple[Change, ...]
    refused: tuple[Proposal, ...]


class ReviewOutcome(Struct, frozen=True):
    """The rubric after a review, and why each item is in it or not; JSON-able."""

    rubric: MetaRubric
    start: MetaRubric
    log: tuple[Step, ...]

    def report(self) -> str:
        """The changes as a diff and the figure behind each, for the record."""
        return _report(self.start, self.rubric, (), self.log)


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
    lines += _assigned({"rubric": rubric.hash, "domain": rubric.domain})
    ordered = sorted(disagreements, key=lambda one: (one.pair.domain, one.pair.id))
    for domain, group in groupby(ordered, key=lambda one: one.pair.domain):
        members = list(group)
        shown = "".join(c if c.isprintable() else " " for c in domain or rubric.domain)
        lines += ["", f"# {len(members)} disagreements in {' '.join(shown.split())}"]
        for pair, score in members:
            said = "no verdict" if score is None else f"{score:+.3g}"
            fields = {
                "id": pair.id,
                "people_prefer": "response_1" if pair.label > 0 else "response_2",
                "judge_score": f"{said} (above 0: response_1)",
                "request": request_of(pair.task)[:SHOWN_TO_PEOPLE],
                "response_1": pair.first.text[:SHOWN_TO_PEOPLE],
                "response_2": pair.second.text[:SHOWN_TO_PEOPLE],
            }
            lines += _table("disagreement", fields)
    for change in proposals:
        fields = {"kind": change.kind}
        if change.before is not None:
            fields["old"] = change.before.title
        if (new := change.after) is not None:
            fields |= {"type": new.type, "title": new.title, "text": new.text}
        lines += _table("proposal", {**fields, "accept": ""})
    try:
        with Path(path).open("x", encoding="utf-8") as file:
            file.write("\n".join([*lines, ""]))
    except OSError as error:
        hint = "one that is there already may hold somebody's review; give another name"
        raise UserError(f"{path}: cannot write the review: {error}; {hint}") from None


def read_review(path: str | Path, rubric: MetaRubric) -> Review:
    """The decisions of an edited file; one line about the first thing that is wrong with it."""
    try:
        table = read_toml(Path(path).read_text(encoding="utf-8-sig"))
        file = msgspec.convert(table, _File)
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise UserError(f"{path}: cannot read the review: {error}") from None
    if file.rubric != rubric.hash:
        raise UserError(
            f"{path}: reviews the rubric {file.rubric}, but this one is {rubric.hash}; write a new "
            "review, or load the rubric that was reviewed."
        )
    accepted: list[Change] = []
    refused: list[Proposal] = []
    for number, proposal in enumerate(file.proposal, 1):
        where = f"{path}: proposal {number}"
        if as_word(f"{where}: accept", proposal.accept.strip().lower(), ANSWERS) == "no":
            refused.append(proposal)
        else:
            try:
                accepted.append(proposal.change(rubric))
            except ValueError as error:
                raise UserError(f"{where}: {error}") from None
    return Review(tuple(accepted), tuple(refused))


async def apply_review(
    review: Review, rubric: MetaRubric, held_out: Sequence[P], *, judge: Judge[P]
) -> ReviewOutcome:
    """Keep each accepted change where agreement on `held_out` rises, on top of those kept before.

    Any rise is enough, because a person has looked at the item. A pair on which the judge failed
    under either rubric is left out of their comparison; too many of those end the review.
    """
    if not held_out:
        raise UserError("a review needs held-out pairs to keep its items; got none.")
    trial = Trial(judge, held_out)
    await trial.marks(rubric)
    now, log = rubric, list[Step]()
    for change in review.accepted:
        tried = await trial.tried(now, change, 1, is_sure=False)
        log += [] if tried.record is None else [tried.record]
        now = tried.child or now
    return ReviewOutcome(now, rubric, tuple(log))


def _table(name: str, fields: Mapping[str, str]) -> list[str]:
    return ["", f"[[{name}]]", *_assigned(fields)]


def _assigned(fields: Mapping[str, str]) -> list[str]:
    return [f"{key} = {_quoted(value)}" for key, value in fields.items()]


def _quoted(text: str) -> str:
    """A TOML basic string on one line; half a character (a lone surrogate) becomes a mark."""
    whole = text.encode("utf-8", "replace").decode()
    return msgspec.json.encode(whole).decode().replace("\x7f", "\\u007f")
