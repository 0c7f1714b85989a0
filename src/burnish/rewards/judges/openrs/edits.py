"""Who proposes edits to a meta-rubric, and the judge that tries them.

    await evolve_rubric(rubric, dev, choice, judge=judge_of(judge), propose=refiner(judge))

Edits are drawn by chance (`random_edits`) or written by a model that reads failures (`refiner`).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

from msgspec import Struct

from burnish.errors import did_you_mean
from burnish.records import Response, Reward, Status, Task
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.openrs.aggregate import TYPES, type_of
from burnish.rewards.judges.openrs.evolve import Failure, Judge, Proposer
from burnish.rewards.judges.openrs.judge import OpenRS, Rules
from burnish.rewards.judges.openrs.meta_rubric import Change, Item, MetaRubric, RubricLibrary
from burnish.rewards.judges.openrs.prompt import prompt
from burnish.rewards.judges.prompting import Question, Unreadable, as_user, mark_for, request_of
from burnish.rewards.judges.reading import Maybe, Table, loose_text, one_of, read_marked, rows
from burnish.rewards.pair_scorers import BothOrders
from burnish.rewards.scorer import checked, gather

SHOWN = 1200
"""Characters of a request or a response that a refiner sees."""


class Preference(Struct, frozen=True):
    """Two responses to a task, and which one people prefer."""

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
