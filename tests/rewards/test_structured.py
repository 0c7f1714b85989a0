"""Judges ask for structured output: servers that offer it, refuse it, ignore it and lie."""

import json

import anyio
import msgspec
import pytest
from hostile_server import HostileServer, ok, slow, status
from reward_cases import a_task, answers, score

from burnish.errors import ArgumentError
from burnish.lm import read_calls
from burnish.lm.http import OpenAILM
from burnish.lm.jobs import Limits
from burnish.records import Criterion, Status
from burnish.rewards import RewardConfig, build, checked
from burnish.rewards.judges import JudgeModel, ListRanking, PointRubric, build_judge
from burnish.rewards.judges.simple import WINNER, marks_table, ranking_table, rating_table

VERDICT = '{"reasons": "it is right", "winner": "A"}'
PROSE = "I think that A is better."


def asked(server):
    """Which requests carried a schema."""
    return ["response_format" in seen.body for seen in server.requests]


def offers(number, seen):
    """A server that writes the form exactly where it was asked for."""
    return ok(VERDICT if "response_format" in seen.body else PROSE)


def refuses(number, seen):
    return status(400, "unknown field") if "response_format" in seen.body else ok(VERDICT)


def judge(server, structured="auto", limits=None, **settings):
    lm = OpenAILM(server.url, "m", structured=structured, limits=limits)
    model = JudgeModel(lm, **settings)
    return build_judge("direct", model, both_orders=False)


def pairs(scorer, count):
    """Questions one after the other, the two texts new each time."""

    async def work():
        return [
            (await checked(scorer, a_task(), answers(f"one {k}", f"two {k}")))[0]
            for k in range(count)
        ]

    return anyio.run(work)


def test_a_server_that_offers_it_is_asked_for_the_form_of_the_verdict():
    with HostileServer(offers) as server:
        rewards = pairs(judge(server), 3)
    assert [reward.value for reward in rewards] == [1.0] * 3
    assert asked(server) == [True] * 3
    form = server.requests[0].body["response_format"]
    assert form["type"] == "json_schema"
    assert form["json_schema"]["strict"] is True
    assert form["json_schema"]["schema"] == WINNER.schema
    assert WINNER.schema["properties"]["winner"] == {"type": "string", "enum": ["A", "B", "Tie"]}


@pytest.mark.parametrize("code", [400, 415, 422])
def test_a_server_that_refuses_it_is_asked_plainly_and_only_once_with_it(code):
    def behave(number, seen):
        return status(code) if "response_format" in seen.body else ok(VERDICT)

    with HostileServer(behave) as server:
        rewards = pairs(judge(server), 3)
    assert [reward.value for reward in rewards] == [1.0] * 3
    assert asked(server) == [True, False, False, False]


@pytest.mark.parametrize("code", [404, 500, 501])
def test_a_server_that_fails_at_it_is_asked_plainly_and_remembered(code):
    def behave(number, seen):
        return status(code) if "response_format" in seen.body else ok(VERDICT)

    with HostileServer(behave) as server:
        rewards = pairs(judge(server, limits=Limits(retries=0)), 3)
    assert [reward.value for reward in rewards] == [1.0] * 3
    assert asked(server) == [True, False, False, False]


@pytest.mark.parametrize("code", [404, 500, 501])
def test_a_server_that_fails_both_ways_is_an_infra_error_and_nothing_is_learnt(code):
    with HostileServer([status(code)]) as server:
        scorer = judge(server, limits=Limits(retries=0))
        (reward,) = pairs(scorer, 1)
    assert (reward.value, reward.status) == (None, Status.INFRA_ERROR)
    assert f"HTTP {code}" in reward.reason
    assert asked(server) == [True, False]
    assert scorer.judge.lm.forces_json is None


@pytest.mark.parametrize("code", [404, 500, 501])
def test_a_server_that_held_to_the_form_before_is_not_asked_plainly_when_it_fails(code):
    def behave(number, seen):
        return offers(number, seen) if number == 0 else status(code)

    with HostileServer(behave) as server:
        rewards = pairs(judge(server, limits=Limits(retries=0)), 2)
    assert [reward.value for reward in rewards] == [1.0, None]
    assert asked(server) == [True, True]


def test_questions_asked_at_once_wait_for_the_first_so_that_one_is_refused():
    with HostileServer(lambda n, s: slow(0.2, refuses(n, s))) as server:
        scorer = judge(server)

        async def one(k):
            rewards = await checked(scorer, a_task(), answers(f"a{k}", f"b{k}"))
            assert rewards[0].value == 1.0, rewards[0]

        async def work():
            async with anyio.create_task_group() as group:
                for k in range(8):
                    group.start_soon(one, k)

        anyio.run(work)
    assert asked(server).count(True) == 1
    assert len(server.requests) == 9


def test_a_server_that_ignores_it_is_not_asked_for_it_again():
    with HostileServer(lambda n, s: ok(PROSE if n == 0 else VERDICT)) as server:
        rewards = pairs(judge(server), 2)
    # The first reply is prose: the repair and the second question go without a schema.
    assert asked(server) == [True, False, False]
    assert [reward.value for reward in rewards] == [1.0, 1.0]


@pytest.mark.parametrize(
    "lie",
    [
        '{"reasons": "x", "winner": "C"}', '{"reasons": "x", "winner": "A", "score": 1}',
        '{"winner": "A"}', '{"reasons": "x", "winner": NaN}', "[]", "",
    ],
)  # fmt: skip
def test_a_server_that_lies_gives_no_number(lie):
    with HostileServer([ok(lie)]) as server:
        (reward,) = pairs(judge(server), 1)
    assert reward.value is None
    assert reward.status is Status.PARSE_ERROR
    assert len(server.requests) == 2


def test_a_cut_reply_says_nothing_about_the_server():
    cut = ok('{"reasons": "it', finish_reason="length")
    with HostileServer([cut, ok(VERDICT)]) as server:
        (reward,) = pairs(judge(server), 1)
    assert reward.value == 1.0
    assert asked(server) == [True, True]


def test_another_refusal_than_of_the_format_is_not_sent_again():
    with HostileServer([status(401)]) as server:
        rewards = pairs(judge(server), 2)
    assert [reward.value for reward in rewards] == [None] * 2
    assert asked(server) == [True, True]
    with HostileServer([status(400, "too long")]) as server:
        scorer = judge(server)
        rewards = pairs(scorer, 1)
    assert asked(server) == [True, False]
    assert scorer.judge.lm.forces_json is None  # the plain request met the same: nothing learnt


def test_on_and_off_are_obeyed():
    with HostileServer(refuses) as server:
        assert [reward.value for reward in pairs(judge(server, "on"), 2)] == [None] * 2
        assert asked(server) == [True, True]
    with HostileServer(offers) as server:
        rewards = pairs(judge(server, "off", repairs=0), 2)
        assert {reward.status for reward in rewards} == {Status.PARSE_ERROR}
        assert asked(server) == [False, False]
    with pytest.raises(ArgumentError, match="structured"):
        OpenAILM("http://127.0.0.1:9/v1", "m", structured="maybe")


def test_records_and_replays_are_the_same_with_and_without(tmp_path):
    keys = []
    for mode in ("auto", "off"):
        path = tmp_path / f"{mode}.jsonl"
        with HostileServer([ok(VERDICT)], port=0) as server:
            pairs(judge(server, mode, record=path), 2)
        keys.append([(call.key, call.messages, call.completions) for call in read_calls(path)])
    assert keys[0] == keys[1]


def test_point_and_list_judges_have_a_form_and_a_recipe_sets_it():
    assert rating_table(1, 5).schema["properties"]["rating"]["enum"] == [1, 2, 3, 4, 5]
    assert marks_table(2).schema["properties"]["items"]["items"]["required"] == [
        "item",
        "reasons",
        "met",
    ]
    assert ranking_table(2).schema["properties"]["ranking"]["items"]["items"]["enum"] == ["A", "B"]
    ranking = json.dumps({"reasons": "x", "ranking": [["A"], ["B"]]})
    marks = json.dumps({"items": [{"item": 1, "reasons": "x", "met": True}]})
    for text, make in (
        (ranking, lambda model: ListRanking(model, both_orders=False)),
        (marks, lambda model: PointRubric(model, [Criterion("short", "is short")])),
    ):
        with HostileServer([ok(text)]) as server:
            rewards = score(make(JudgeModel(OpenAILM(server.url, "m"))), a_task(), "x", "y")
        assert all(reward.value is not None for reward in rewards), rewards
        assert all(asked(server))
    table = {"kind": "judge", "with": "point", "model": "http://127.0.0.1:9/v1#m"}
    lm = build(msgspec.convert({**table, "structured": "off"}, RewardConfig)).judge.lm
    assert (lm.structured, lm.forces_json) == ("off", False)


@pytest.mark.parametrize("table", [WINNER, rating_table(1, 10), marks_table(3), ranking_table(3)])
def test_every_form_is_a_valid_schema_that_takes_what_the_reader_reads(table):
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(table.schema)
    good = {
        "winner": {"reasons": "x", "winner": "Tie"},
        "rating": {"reasons": "x", "rating": 10},
        "items": {"items": [{"item": k, "reasons": "x", "met": False} for k in (1, 2, 3)]},
        "ranking": {"reasons": "x", "ranking": [["B"], ["A", "C"]]},
    }
    value = next(value for key, value in good.items() if key in table.schema["properties"])
    jsonschema.validate(value, table.schema)
    table.read(value)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**value, "more": 1}, table.schema)
