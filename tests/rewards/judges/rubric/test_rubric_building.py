"""Rubrics from consensus: support that is quoted, rules kept, rescue by passages, people last."""

from __future__ import annotations

import json
import re

import anyio
from hypothesis import given, strategies as st

from burnish.rewards.judges.rubric import (
    Plan,
    Point,
    Roles,
    Source,
    audit_points,
    build_rubric,
    building,
    in_consensus,
)
from burnish.rewards.judges.rubric.items import merge_points
from burnish.tools.search import Passage, PassageIndex

QUESTION = "How do I descale the kettle?"
POINTS = {
    "Unplug the kettle before you begin": ("important", "Unplug it."),
    "Boil water with vinegar in it": ("important", "Boil with vinegar."),
    "Rinse twice with fresh water": ("important", "Rinse twice."),
    "Lime comes from hard water": ("insight", "Hard water leaves lime."),
    "A filter slows the lime down": ("extended", "A filter helps."),
}
TIERS = ("essential", "essential", "important", "important", "highlight")


def writer(name: str, *said: str):
    def write(prompt: str) -> str:
        assert QUESTION in prompt
        return " ".join(said)

    write.__name__ = name
    return write


def blocks(prompt: str, title: str) -> dict[str, str]:
    found = re.findall(
        rf"=== ({title}[^=\n]*?) (\w+) ===\n(.*?)\n=== end of \1 \2 ===", prompt, re.S
    )
    return {name: text for name, _, text in found}


def reader(prompt: str) -> str:
    """Quotes every answer that has the words; writes references from the statements."""
    answers = blocks(prompt, "answer")
    if not answers:
        return "A reference: " + " ".join(blocks(prompt, "statements").values())
    rows = [
        {
            "text": text,
            "kind": kind,
            "support": [
                {"answer": int(name.split()[1]), "quote": quote}
                for name, answer in answers.items()
                if quote in answer
            ],
        }
        for text, (kind, quote) in POINTS.items()
    ]
    return json.dumps(rows)


def author(prompt: str, spoil: bool = False) -> str:
    statements = [s.split(": ", 1) for s in blocks(prompt, "statements")["statements"].splitlines()]
    items = [
        {
            "id": f"i{n}", "title": " ".join(text.split()[:2])[:15], "tier": TIERS[n % len(TIERS)],
            "tag": "safety" if "Unplug" in text else "information quality",
            "points": [] if spoil else [name],
            "description": {"0": f"no word of {name}", "1": f"half of {name}", "2": text},
        }
        for n, (name, text) in enumerate(statements)
    ]  # fmt: skip
    return json.dumps(items)


def built(*writers, index=None, plan=None, **roles):
    given = Roles(**({"writers": writers, "aggregators": [reader], "author": author} | roles))
    return anyio.run(lambda: build_rubric(QUESTION, given, retriever=index, plan=plan))


ALL = [quote for _, quote in POINTS.values()]


def test_statements_that_two_models_make_become_items_with_provenance():
    found = built(writer("ann", *ALL), writer("bob", *ALL))
    assert found.outcome == "built", found.reason
    rubric = found.rubric
    assert rubric.validate() == []
    assert len(rubric.items) == len(POINTS)
    assert {s.model for s in rubric.items[0].provenance} == {"ann", "bob"}
    assert rubric.items[0].provenance[0].quote == "Unplug it."
    assert len(found.candidates) == 6
    assert {c.style for c in found.candidates} == {"basic", "professional", "insight"}
    assert len(found.references) == 2
    assert len(found.evidence) == 6 + 1 + 1 + 1


def test_one_model_s_many_samples_are_one_voice():
    found = built(writer("ann", *ALL), writer("bob", "I do not know."))
    assert (found.rubric, found.outcome) == (None, "needs_human")
    assert found.reason == "none of 5 statements is in consensus"
    assert len(found.considered) == 5


def test_a_quotation_nobody_said_is_no_support():
    def liar(prompt: str) -> str:
        rows = json.loads(reader(prompt)) if blocks(prompt, "answer") else []
        for row in rows:
            row["support"] = [
                {"answer": 1, "quote": "never said"},
                {"answer": 99, "quote": "Unplug"},
            ]
        return json.dumps(rows)

    found = built(writer("ann", *ALL), writer("bob", *ALL), aggregators=[liar])
    assert found.outcome == "needs_human"
    assert found.considered == ()


def test_an_audit_that_decides_nothing_accepts_nothing(monkeypatch):
    monkeypatch.setattr(building, "rule_audit", lambda *_: audit_points({}))
    found = built(writer("ann", *ALL), writer("bob", *ALL), plan=Plan(quality=0.0))
    assert found.outcome == "needs_human"
    assert found.reason == "the audit decided nothing, so nothing speaks for the rubric"


def checker(prompt: str) -> str:
    """Supports what a passage says; holds that filters do not help."""
    passages = blocks(prompt, "passage")
    rows = []
    for line in blocks(prompt, "statements")["statements"].splitlines():
        name, text = line.split(": ", 1)
        where = next((p for p, t in passages.items() if "Unplug the appliance" in t), "")
        is_plug = "Unplug" in text and bool(where)
        rows.append(
            {
                "point": name,
                "holds": "filter" not in text,
                "passage": where.removeprefix("passage ") if is_plug else "",
                "quote": "Unplug the appliance" if is_plug else "",
            }
        )
    return json.dumps(rows)


MANUAL = [
    Passage("m1", "Unplug the appliance before cleaning the kettle."),
    Passage("m2", "A poem about the sea."),
]


def test_one_passage_is_enough_and_a_majority_of_checkers_can_refuse():
    four = ALL[1:]
    found = built(
        writer("ann", ALL[0], *four), writer("bob", *four), checkers=[checker, checker],
        index=PassageIndex(MANUAL), plan=Plan(rules=Plan().rules._replace(items=(2, 15), least=())),
    )  # fmt: skip
    assert found.outcome == "built", found.reason
    texts = [point.text for point in found.rubric.points]
    assert "Unplug the kettle before you begin" in texts
    assert "A filter slows the lime down" not in texts
    plug = next(i for i in found.rubric.items if i.tag == "safety")
    assert {s.source for s in plug.provenance} == {"", "m1"}


def test_a_query_that_fails_is_rescued_by_retrieved_passages():
    manual = PassageIndex([Passage("m1", f"descale the kettle: {' '.join(ALL)}")])
    found = built(writer("ann", *ALL), writer("bob", "No idea."), index=manual)
    assert found.outcome == "rescued", found.reason
    assert "none of 5 statements" in found.reason
    assert {s.source for i in found.rubric.items for s in i.provenance} == {"", "m1"}


def test_items_that_rest_on_nothing_are_refused():
    found = built(
        writer("ann", *ALL), writer("bob", *ALL), author=lambda prompt: author(prompt, spoil=True)
    )
    assert (found.rubric, found.outcome) == (None, "needs_human")
    assert "to rest on statements" in found.reason


def auditor(**findings: bool):
    def audit(prompt: str) -> str:
        rows = {
            "right": True, "atomic": True, "checkable": True, "safety_omitted": False,
        } | findings  # fmt: skip
        return json.dumps([{"check": k, "holds": v} for k, v in rows.items()])

    return audit


def test_the_audit_decides_and_a_missing_safety_item_is_a_veto():
    two = (writer("ann", *ALL), writer("bob", *ALL))
    good = built(*two, auditor=auditor())
    assert (good.outcome, good.audit.earned, good.audit.possible) == ("built", 35, 35)
    wrong = built(*two, auditor=auditor(right=False))
    assert (wrong.outcome, wrong.audit.earned) == ("needs_human", 26)
    assert wrong.reason == "audit 26 of 35: right"
    vetoed = built(*two, auditor=auditor(safety_omitted=True))
    assert (vetoed.outcome, vetoed.audit.earned) == ("needs_human", 0)


@given(
    st.lists(st.sampled_from("abc"), max_size=4),
    st.lists(st.sampled_from("xy"), max_size=2),
    st.integers(0, 3),
)
def test_consensus_needs_two_models_or_a_source(models, sources, objections):
    support = [Source("q", model=m) for m in models] + [Source("q", source=s) for s in sources]
    point = Point("p", "text", provenance=tuple(support))
    expected = (len(set(models)) >= 2 or bool(sources)) and objections < 2
    assert in_consensus(point, objections=objections, checkers=3) is expected


def test_the_same_statement_in_other_words_is_one_with_all_its_supports():
    first = [Point("", "rinse the kettle twice", "extended", (Source("a", model="ann"),))]
    second = [Point("", "Rinse the kettle, twice!", "important", (Source("b", model="bob"),))]
    (merged,) = merge_points([first, second])
    assert merged.id == "p1"
    assert merged.kind == "important"
    assert {s.model for s in merged.provenance} == {"ann", "bob"}
    assert len(merge_points([first, second], same=1.01)) == 2
