"""Where edits of a rubric come from: chance, or a model that looks at what went wrong.

propose = random_edits(pool)
propose = refiner(JudgeModel(lm))
judge = judge_of(JudgeModel(lm), library)       # OpenRS itself as the judge of `evolve_rubric`
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from burnish.records import Response, Reward, Status, Task
from burnish.rewards.judges.asking import JudgeModel
from burnish.rewards.judges.openrs.aggregate import TYPES, type_of
from burnish.rewards.judges.openrs.evolve import Proposer
from burnish.rewards.judges.openrs.judge import OpenRS, Rules
from burnish.rewards.judges.openrs.library import RubricLibrary
from burnish.rewards.judges.openrs.meta_rubric import Change, Item, MetaRubric
from burnish.rewards.judges.openrs.prompt import marked_object, prompt
from burnish.rewards.judges.openrs.trial import Failure, Judge
from burnish.rewards.judges.prompting import as_user, mark_for, request_of
from burnish.rewards.judges.questions import Question, Unreadable
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
        question = Question("openrs refine", as_user(text), about)
        heard = await judge.ask(question, partial(read_edits, rubric=rubric, mark=mark))
        return (heard.verdict or [])[:most]

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


def read_edits(reply: str, rubric: MetaRubric, mark: str | None = None) -> list[Change]:
    """The edits of a refiner's reply; `Unreadable` names the first that makes no sense."""
    edits = marked_object(reply, mark).get("edits")
    if not isinstance(edits, list):
        raise Unreadable(f"expected 'edits' as a list, got {type(edits).__name__}")
    items = {item.title: item for item in rubric.items}
    return [_edit(edit, place, items) for place, edit in enumerate(edits, 1)]


def _edit(edit: Any, place: int, items: Mapping[str, Item]) -> Change:
    if not isinstance(edit, Mapping) or edit.get("kind") not in ("add", "delete", "modify"):
        raise Unreadable(f"edit {place}: expected kind add, delete or modify")
    kind = edit["kind"]
    before = items.get(str(edit.get("old", "")).strip())
    if kind != "add" and before is None:
        raise Unreadable(f"edit {place}: expected 'old' to be the title of an item of the rubric")
    after = None
    if kind != "delete":
        after = Item(
            type_of(edit.get("type") or (before and before.type)),
            " ".join(str(edit.get("title") or (before.title if before else "")).split()),
            " ".join(str(edit.get("text") or "").split()),
        )
        says_something = after.title.strip(". ") and after.text.strip(". ")
        if after.type not in TYPES or not says_something:
            raise Unreadable(f"edit {place}: expected type, title and text")
    return Change(kind, None if kind == "add" else before, after)


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
