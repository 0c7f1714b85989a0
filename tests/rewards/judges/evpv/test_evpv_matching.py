"""Facts of any evidence in canonical form, and what they say of a claim."""

import base64
import io

import anyio
import numpy as np
import pytest
from hypothesis import given, strategies as st

from burnish.errors import UserError
from burnish.lm import ScriptedLM
from burnish.records import Status
from burnish.rewards.checks.quantities import read_quantity, same_quantity
from burnish.rewards.judges.evpv import (
    EmbeddingMatcher,
    FactIndex,
    Outcome,
    extract_all,
    read_statement,
)
from burnish.rewards.judges.evpv.evidence import pieces_of
from burnish.rewards.judges.evpv.scores import SolutionStep, read_solution, undeclared_premises
from burnish.rewards.judges.judge_model import JudgeModel

YES, NO, OPEN = Outcome.SUPPORTED, Outcome.CONTRADICTED, Outcome.UNKNOWN


@pytest.mark.parametrize(
    ("facts", "claim", "outcome"),
    [
        (["AB = 10"], "BA = 10", YES), (["AB = 10"], "The length of AB is 10.", YES),
        (["Equals(LengthOf(Line(B, A)), 10)"], "AB = 12", NO),
        (["Equals(MeasureOf(Angle(A, B, C)), 40)"], "angle CBA is 40 degrees", YES),
        (["∠ABC = 40°"], "m∠CBA = 50", NO), (["AB = 10"], "AC = 10", OPEN),
        (["C = 3", "C++ = 7"], "C++ = 3", NO), (["C = 3", "C++ = 7"], "C++ = 7", YES),
        (["C = 3"], "C# = 3", OPEN), (["A+ = 3", "A- = 7"], "A- = 3", NO),
        (["AB = 10 cm"], "AB = 0.1 m", YES), (["AB = 10 cm"], "AB = 10 m", NO),
        (["AB = 10 cm"], "AB = 10 apples", OPEN), (["AB = x+10"], "AB = x + 10", YES),
        (["AB = x+10"], "AB = 12", OPEN), (["AB ∥ CD"], "DC is parallel to BA", YES),
        (["AB is parallel to CD"], "AB is not parallel to CD", NO),
        (["AB is parallel to CD"], "AB is perpendicular to CD", OPEN),
        (["Perpendicular(Line(E, B), Line(E, D))"], "BE ⊥ DE", YES), (["AB = CD"], "CD = AB", YES),
        (["x >= 3"], "x > 2", YES), (["x >= 3"], "x < 3", NO), (["x >= 3"], "x = 4", OPEN),
        (["x = 3"], "x != 3", NO), (["x = 3"], "x is at least 3", YES),
        (["There are three red boxes."], "There are 3 red boxes", YES),
        (["There are three red boxes."], "There are 4 red boxes", NO),
        (["Revenue in 2019: 40 million"], "revenue of 2019 is 40,000,000", YES),
        (["Sold in 2019: 2019"], "sold in 2019 = 2020", NO), (["Share: 40%"], "share is 40", YES),
        (["Pi: 3.1416"], "pi is 3.1415", YES), (["The box is red"], "the box is red", YES),
        (["The box is red"], "the box is large", OPEN),
        (["AB = 10", "AB = 12"], "AB = 12", YES),  # facts that differ: one that agrees is enough
        (["exports of Japan to China = 5", "exports of China to Japan = 9"],
         "exports of China to Japan = 5", NO),
        (["exports of Japan to China = 5", "exports of China to Japan = 9"],
         "the exports of Japan to China = 5", YES),
        (["exports of Japan to China = 5", "exports of China to Japan = 9"],
         "China Japan exports = 5", OPEN),
        (["exports of Japan to China = 5"], "exports of China to Japan = 5", OPEN),
        (["Revenue in 2019: 40", "the revenue of 2019: 40"], "revenue for 2019 = 41", NO),
        (["Price of M: 7"], "Price of A = 7", OPEN),
        (["AB = 10", "the length of BA = 10"], "segment AB = 12", NO),
        (["Tea = $14"], "Tea = €14", OPEN), (["Tea = $14"], "Tea = 14 €", OPEN),
        (["Tea = $14"], "Tea = 14 dollars", YES), (["Tea = $14"], "Tea = 14", YES),
        (["Tea = $14"], "Tea = $15", NO), (["AB = 10"], "AB = nan", OPEN),
        (["AB = 10"], "AB = inf", OPEN), (["AB = 10"], "", OPEN), (["AB = 10"], "((((", OPEN),
        (["AB = 10"], "Equals(Equals(", OPEN), ([], "AB = 10", OPEN),
    ],
)  # fmt: skip
def test_what_facts_say_of_a_claim(facts, claim, outcome):
    assert FactIndex(facts).match(claim).outcome is outcome


def test_a_cell_has_one_value_and_a_sentence_may_have_several():
    cells = anyio.run(extract_all, {"csv": "City,Colour\nArlen,red\nBree,blue"}).facts
    assert FactIndex(cells).match("Colour of Arlen is blue").outcome is NO
    assert FactIndex(cells).match("the colour of Bree is blue").outcome is YES
    assert FactIndex(cells).match("Arlen is red").outcome is YES


@given(st.text(max_size=60))
def test_any_text_is_read_or_not_and_never_breaks(text):
    read_statement(text)
    assert FactIndex(["AB = 10"]).match(text).outcome in Outcome
    read_solution(text)


@given(st.integers(-500, 500), st.sampled_from(["", " cm", "%", " people"]))
def test_a_fact_supports_itself_and_contradicts_another_number(number, unit):
    index = FactIndex([f"AB = {number}{unit}"])
    assert index.match(f"BA = {number}{unit}").outcome is YES
    assert index.match(f"BA = {number + 1}{unit}").outcome is NO


def test_quantities():
    assert read_quantity("10 ms").unit == "ms"
    assert read_quantity("3 m^2").unit == "m^2"
    assert read_quantity("1e999") is None
    assert [read_quantity(one).unit for one in ("$3 million", "3 euros", "£3 per kg", "¥3 yen")] == [
        "$", "€", "£per kg", "¥",
    ]  # fmt: skip
    assert same_quantity(read_quantity("90 min"), read_quantity("1.5 h")) is True
    assert same_quantity(read_quantity("3 kg"), read_quantity("3 m")) is None


XLSX_ROWS = [["", "Price", "Stock"], ["Tea", 3.2, 5], ["Milk", 1, None]]


def workbook() -> str:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in XLSX_ROWS:
        book.active.append(row)
    file = io.BytesIO()
    book.save(file)
    return base64.b64encode(file.getvalue()).decode()


@pytest.mark.parametrize(
    "piece",
    [
        {"csv": ",Price,Stock\nTea,3.2,5\nMilk,1,"}, {"csv": ";Price;Stock\nTea;3.2;5\nMilk;1;"},
        {"markdown": "|  | Price | Stock |\n|---|---|---|\n| Tea | **3.2** | 5 |\n| Milk | 1 | |"},
        {"html": "<table><tr><th></th><th>Price</th><th>Stock</th></tr><tr><td>Tea</td><td>3.2</td>"
         "<td>5</td></tr><tr><td>Milk<td>1</td><td></td></tr></table>"},
        {"rows": XLSX_ROWS}, {"xlsx": workbook},
    ],
    ids=lambda piece: next(iter(piece)),
)  # fmt: skip
def test_every_form_of_a_table_has_the_same_facts(piece):
    given = {key: value() if callable(value) else value for key, value in piece.items()}
    index = FactIndex(anyio.run(extract_all, given).facts)
    assert index.match("The price of tea is 3.20").outcome is YES
    assert index.match("stock of tea: 6").outcome is NO
    assert index.match("price of tea is 3.20").source == "row 2, column Price"


def test_evidence_is_a_list_of_pieces_whatever_it_was():
    mixed = [
        "AB = 10. CD is parallel to EF; GH = 3",
        {"type": "facts", "facts": ["XY = 7", "XZ = nan", 5, ""]},
        {"caption": "c", "key_facts": ["UV = 2"], "uncertain": ["UW = 1"]},
        [{"subject": "KL", "value": 4}],
    ]
    found = anyio.run(extract_all, mixed)
    texts = {fact.text.rstrip(".") for fact in found.facts}
    assert texts == {"AB = 10", "CD is parallel to EF", "GH = 3", "XY = 7", "UV = 2", "KL = 4"}
    assert found.unreadable == 2
    assert [piece["type"] for piece in pieces_of(mixed)] == ["text", "facts", "facts", "facts"]
    for bad in (5, [5], {"a": 1}, {"type": "image", "sha256": "x"}):
        with pytest.raises(UserError):
            anyio.run(extract_all, bad)
    broken = anyio.run(extract_all, {"xlsx": "no base64!"})
    assert (broken.status, broken.facts) == (Status.PARSE_ERROR, ())


def extract_with(reply: str):
    judge = JudgeModel(ScriptedLM(lambda messages, index: reply), repairs=0)

    async def run():
        return await extract_all("AB is 10.", extractor="llm", judge=judge)

    return anyio.run(run)


def test_a_model_lists_facts_or_none_are_known():
    found = extract_with('{"caption": "c", "key_facts": ["AB = 10", 5], "uncertain": []}')
    assert [fact.text for fact in found.facts] == ["AB = 10"]
    assert found.evidence[0].observation.startswith("{")
    failed = extract_with("There is a line.")
    assert (failed.status, failed.facts) == (Status.PARSE_ERROR, ())


class Letters:
    """Sentences as counts of letters: near where they share them."""

    def encode(self, texts):
        rows = np.array(
            [[text.lower().count(c) for c in "abcdefghijklmnopqrstuvwxyz"] for text in texts]
        )
        return rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-9)


def test_vectors_decide_what_the_form_leaves_open():
    facts = ["The tower stands by the river with 3 floors", "The bridge never opens at night"]
    index = FactIndex(facts)
    claims = [
        "By the river stands the tower, 3 floors", "By the river stands the tower, 9 floors",
        "The bridge opens at night", "Zebras buzz quickly",
    ]  # fmt: skip
    matcher = EmbeddingMatcher(Letters())
    matched = [index.match(claim) for claim in claims]
    found = matcher.match(index, matched)
    assert [one.outcome for one in found] == [YES, NO, NO, OPEN]
    assert found[0].by == "embedding"
    assert "cosine" in found[0].note
    empty = FactIndex([])
    assert matcher.match(empty, [empty.match("AB = 1")])[0].outcome is OPEN


def test_undeclared_premises_are_what_a_step_reads_off_the_evidence():
    index = FactIndex(["AB = 10", "Price of Tea: 3.20"])
    steps = [
        SolutionStep("The side is 10.", []), SolutionStep("5 * 2 = 10, and 10 again.", []),
        SolutionStep("For one Tea we pay.", []), SolutionStep("AB is long.", ["AB = 10"]),
        SolutionStep("So 7.", []),
    ]  # fmt: skip
    assert undeclared_premises(steps, index, "How large?") == {0: "mentions 10", 2: "mentions Tea"}
    assert undeclared_premises(steps, index, "The side 10 of Tea?") == {}


def test_solutions_in_json_and_in_text():
    own = '```json\n{"steps": [{"text": "a", "premise": "AB = 1"}, "b"], "final_answer": 5}\n```'
    reference = (
        '{"reasoningprocess": [{"steptext": "a", "visualdependency": "AB = 1"},'
        ' {"steptext": "b", "visualdependency": null}], "finalanswer": "5"}'
    )
    for text in (own, reference):
        found = read_solution(text)
        assert found.steps == [("a", ["AB = 1"]), ("b", [])]
        assert found.final_answer == "5"
    plain = read_solution("a [premise: AB = 1] [from: null]\n\nb")
    assert plain.steps == [("a", ["AB = 1"]), ("b", [])]
    assert read_solution("").steps == []
    nested = read_solution('{"steps": [{"text": "a", "premise": {"x": 1}}]}')
    assert nested.steps[0].premises == ["(a premise that is no text)"]


def test_many_facts_and_huge_claims_are_no_burden():
    index = FactIndex(f"P{n} of row {n} = {n}" for n in range(100_000))
    assert index.match("P5 of row 5 is 5").outcome is YES
    assert index.match("P5 of row 5 is 6").outcome is NO
    huge = index.match("AB = 1" + "0" * 10_000_000)
    assert huge.outcome is OPEN
    assert len(huge.claim) <= 400
    assert "characters" in huge.note
    assert [fact.text for fact in index.nearest(["what of P77?"], 3)] == ["P77 of row 77 = 77"]
    solution = read_solution("[premise: " + "x" * 10_000_000 + "]")
    assert index.match(solution.steps[0].premises[0]).outcome is OPEN
