"""Citations by the pattern of ATP-Bench's judge: right, missing, and neither where there is no source."""

import json

import anyio
import msgspec
import pytest
from hypothesis import given, strategies as st

from burnish.errors import UserError
from burnish.lm import ScriptedLM
from burnish.records import Message, Response, Status, Task
from burnish.rewards.config import RewardConfig, build
from burnish.rewards.judges.atp_bench import plan_of
from burnish.rewards.judges.build import build_judge
from burnish.rewards.judges.citations import citation_scorer, cited_sentences, supports
from burnish.rewards.judges.judge_model import JudgeModel

DOCUMENTS = [
    "Price list of the harbour shop. Tea costs 14 pounds a crate. Salt costs 9 pounds a sack.",
    {"text": "The lighthouse was built in 1871 by the engineer Mary Holm."},
    "Opening hours: the shop is closed on Sunday.",
]
TASK = Task("t", (Message("user", "Tell me about the harbour."),), {"documents": DOCUMENTS})


def scored(text, **options):
    (reward,) = anyio.run(citation_scorer(**options).score, TASK, [Response("r", text)])
    return reward


@pytest.mark.parametrize(
    ("text", "precision", "recall", "missed"),
    [
        ("Tea costs 14 pounds a crate. [1]", 1.0, 1.0, 0),
        ("Tea costs 14 pounds a crate [1].", 1.0, 1.0, 0),
        ("Tea costs 14 pounds a crate.", None, 0.0, 1),
        ("Tea costs 14 pounds a crate. [2]", 0.0, 0.0, 1),
        ("Tea costs 15 pounds a crate. [1]", 0.0, None, 0),
        ("Tea costs 14 pounds a crate. [1, 2]", 0.5, 1.0, 0),
        ("The lighthouse was built in 1871. [2] Tea costs 14 pounds.", 1.0, 0.5, 1),
        ("Dragons are a matter of taste.", None, None, 0),
    ],
)
def test_what_is_there_and_what_is_missing(text, precision, recall, missed):
    figures = scored(text, otherwise=0.0).components
    assert figures.get("precision") == precision
    assert figures.get("recall") == recall
    assert figures["missed"] == missed


def test_a_gap_names_the_document_and_an_answer_without_a_source_lacks_no_citation():
    plan = plan_of(scored("Salt costs 9 pounds a sack. Dragons are loud."))
    (gap,) = plan.missed
    assert (gap.where, gap.intent) == ("Salt costs 9 pounds a sack.", "cite document 1")
    assert scored("Dragons are loud.").value == 1.0


def test_what_a_rule_decides_no_role_is_asked():
    reward = scored("Tea costs 14 pounds a crate. [1, 1, 7] The end [0].")
    items = plan_of(reward).items
    assert [item.reason for item in items if not item.valid] == [
        "duplicate", "no_such_document", "no_such_document",
    ]  # fmt: skip
    assert reward.components["validity"] == 0.25


def test_marks_stand_in_a_sentence_behind_it_or_on_their_own_line():
    found = cited_sentences("A is 3.5 [1]. B?[2]\nC! [3][4]\n[5]\n\nno mark [a] [")
    assert [one.numbers for one in found] == [(1,), (2,), (3, 4, 5), ()]
    assert found[0].text == "A is 3.5."


@given(st.text(max_size=300))
def test_the_parser_is_total(text):
    for one in cited_sentences(text):
        assert 0 <= one.start <= one.end <= len(text)
        assert len(one.numbers) == len(one.places)


def test_long_answers_and_hostile_marks_end():
    assert cited_sentences("[1" * 50_000) is not None
    assert len(cited_sentences("a." * 50_000)) >= 1
    reward = scored("Tea costs 14 pounds a crate. [1]\n" * 1000)
    assert {item.reason for item in plan_of(reward).items if not item.valid} <= {"too_many"}
    task = Task("t", TASK.messages, {"documents": [3]})
    with pytest.raises(UserError, match=r"task t, field 'documents'"):
        anyio.run(citation_scorer().score, task, [Response("r", "x [1]")])


def judged(script, text, **options):
    judge = JudgeModel(ScriptedLM(script), repairs=0)
    scorer = build_judge("citations", judge, options)
    (reward,) = anyio.run(scorer.score, TASK, [Response("r", text)])
    return reward, judge.lm


def test_a_model_sees_one_sentence_and_one_document_and_may_overrule_the_words():
    def script(messages, index):
        said = messages[0].text
        assert "harbour." not in said or "Price list" in said
        shown = said.split("=== sentence")[1].split("=== end")[0]
        return json.dumps({"supported": "not" not in shown, "reason": "so"})

    text = "Tea costs 14 pounds a crate. [1] Salt does not cost 9 pounds a sack. [1]"
    reward, lm = judged(script, text)
    assert reward.components["precision"] == 0.5
    assert len(lm.calls) == 2
    assert scored(text).components["precision"] == 1.0
    reward, lm = judged(script, text, by="words")
    assert not lm.calls


def test_a_reply_that_cannot_be_read_leaves_the_citation_unjudged():
    reward, _ = judged(lambda m, n: "yes, certainly", "Tea costs 14 pounds a crate. [1]")
    assert reward.value is None
    assert reward.status is Status.PARSE_ERROR
    reward, _ = judged(lambda m, n: "yes, certainly", "Tea costs 14 pounds a crate.")
    assert reward.status is Status.PARSE_ERROR


def test_as_a_reward_by_words_alone_and_options_that_make_no_sense():
    table = {"kind": "judge", "with": "citations", "model": "tiny", "options": {"by": "words"}}
    scorer = build(msgspec.convert(table, RewardConfig))
    (reward,) = anyio.run(scorer.score, TASK, [Response("r", "Tea costs 14 pounds a crate. [1]")])
    assert reward.value == 1.0
    for options in ({"value": "quality"}, {"by": "judge"}, {"lest": 1}):
        with pytest.raises(UserError):
            citation_scorer(**options)


def test_rare_words_decide():
    documents = ["the shop sells tea", "the shop sells salt"]
    found = [supports("The shop sells tea", one, documents) for one in documents]
    assert found[0].share == 1.0
    assert found[1].share < 0.6
    alike = supports("The shop sells tea", documents[1], ["tea and salt", "tea and rye"])
    assert alike.share > found[1].share


def test_every_document_can_be_cited():
    documents = [f"Topic{n} costs {n} pounds." for n in range(1, 251)]
    task = Task("t", TASK.messages, {"documents": documents})
    (reward,) = anyio.run(
        citation_scorer().score, task, [Response("r", "Topic230 costs 230 pounds. [230]")]
    )
    assert reward.value == 1.0


def test_a_sentence_without_words_to_compare_is_unjudged_and_many_marks_are_wrong():
    task = Task("t", TASK.messages, {"documents": ["茶は高い。"]})
    (reward,) = anyio.run(citation_scorer().score, task, [Response("r", "茶は高い。[1]")])
    assert reward.value is None
    assert "1 items without a verdict" in reward.reason
    crowd = scored("Tea costs 14 pounds. [" + ", ".join("1" * 30) + "]")
    reasons = [item.reason for item in plan_of(crowd).items]
    assert reasons[1] == "duplicate"
    assert crowd.components["validity"] == pytest.approx(1 / 30)
    with pytest.raises(UserError, match="otherwise"):
        citation_scorer(otherwise=float("nan"))
