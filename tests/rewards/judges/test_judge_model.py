"""The judge's core: repair, statuses, cache, equal questions, budget, record and replay."""

import sys
import threading

import anyio
import pytest
from judge_cases import SlowLM, a_task, answers, judge_of, longer_wins, score, verdict

from burnish.errors import StoreError, UserError
from burnish.lm.base import Completion, Sampling, TooLong
from burnish.lm.failures import Refused, TimedOut, Unreachable
from burnish.lm.http import Prices
from burnish.lm.named import open_lm
from burnish.lm.replay import ReplayLM, ScriptedLM
from burnish.records import Finish, Message, Status
from burnish.rewards import checked
from burnish.rewards.judges import (
    Budget,
    BudgetSpent,
    CallLog,
    JudgeModel,
    Question,
    Unreadable,
    build_judge,
    read_calls,
    replay,
)
from burnish.rewards.judges.simple import DirectPair

QUESTION = Question("pair", (Message("user", "Which one?"),), ("t", "a", "b"))


def read_letter(text):
    if text not in ("A", "B"):
        raise Unreadable(f"expected A or B, got {text!r}")
    return text


def ask(judge, question=QUESTION, read=read_letter):
    return anyio.run(judge.ask, question, read)


def ask_many(judge, *questions):
    async def run():
        heard = {}

        async def one(place, question):
            heard[place] = await judge.ask(question, read_letter)

        async with anyio.create_task_group() as group:
            for place, question in enumerate(questions):
                group.start_soon(one, place, question)
        return [heard[i] for i in range(len(questions))]

    return anyio.run(run)


def test_one_readable_reply_is_the_verdict():
    heard = ask(JudgeModel(ScriptedLM(["A"])))
    assert (heard.verdict, heard.status, heard.reason) == ("A", Status.OK, "")
    assert [e.observation for e in heard.evidence] == ["A"]
    assert heard.evidence[0].error is None


def test_an_unreadable_reply_is_asked_for_once_more_with_the_reason():
    lm = ScriptedLM(["I like both", "B"])
    heard = ask(JudgeModel(lm))
    assert heard.verdict == "B"
    assert [reply.text for reply in heard.replies] == ["I like both", "B"]
    roles = [m.role for m in lm.calls[1].prompt]
    assert roles == ["user", "assistant", "user"]
    assert "expected A or B, got 'I like both'" in lm.calls[1].prompt[-1].content


def test_two_unreadable_replies_are_a_parse_error_with_both_kept():
    heard = ask(JudgeModel(ScriptedLM(["maybe", "both"])))
    assert heard.verdict is None
    assert heard.status is Status.PARSE_ERROR
    assert "expected A or B, got 'both'" in heard.reason
    assert [e.observation for e in heard.evidence] == ["maybe", "both"]
    assert [e.error is None for e in heard.evidence] == [True, False]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (TimedOut("late"), Status.TIMEOUT), (TimeoutError("late"), Status.TIMEOUT),
        (Unreachable("gone"), Status.INFRA_ERROR), (ConnectionError("gone"), Status.INFRA_ERROR),
        (Refused("no"), Status.REFUSED), (TooLong("a prompt of 9000 tokens"), Status.INFRA_ERROR),
    ],
)  # fmt: skip
def test_each_failure_has_its_status_and_no_verdict(error, status):
    heard = ask(JudgeModel(SlowLM(error=error)))
    assert (heard.verdict, heard.status) == (None, status)
    assert heard.reason


@pytest.mark.parametrize("error", [ZeroDivisionError(), UserError("no key")])
def test_a_bug_and_a_wrong_setting_are_not_swallowed(error):
    with pytest.raises(type(error)):
        ask(JudgeModel(SlowLM(error=error)))


def test_a_call_past_its_deadline_is_a_timeout():
    heard = ask(JudgeModel(SlowLM("A", seconds=5), deadline_s=0.01))
    assert heard.status is Status.TIMEOUT
    assert "no answer within 0.01 s (deadline_s)" in heard.reason


def test_no_completion_and_a_broken_one_are_infra_errors():
    class Empty(SlowLM):
        async def sample(self, prompt, sampling):
            return []

    class Broken(SlowLM):
        async def sample(self, prompt, sampling):
            return [Completion("A", finish=Finish.ERROR)]

    for lm in (Empty(), Broken()):
        heard = ask(JudgeModel(lm))
        assert (heard.verdict, heard.status) == (None, Status.INFRA_ERROR)


def test_a_cut_reply_says_so():
    class Cut(SlowLM):
        async def sample(self, prompt, sampling):
            return [Completion("A beca", finish=Finish.LENGTH)]

    assert "cut at max_tokens" in ask(JudgeModel(Cut())).reason


def test_half_a_character_in_a_text_does_not_end_the_run():
    question = Question("pair", (Message("user", "bad \ud83d text"),))
    assert ask(JudgeModel(ScriptedLM(["A"])), question).verdict == "A"


def test_the_seed_follows_from_the_words_and_the_vote_alone():
    lm = ScriptedLM(lambda messages, index: "A")
    judge = JudgeModel(lm)
    again = Question("pair", QUESTION.messages, ("other", "ids"))
    other_vote = Question("pair", QUESTION.messages, QUESTION.about, vote=1)
    for question in (QUESTION, again, other_vote):
        ask(judge, question)
    seeds = [call.sampling.seed for call in lm.calls]
    assert seeds[0] == seeds[1] != seeds[2]


def test_equal_questions_at_the_same_time_are_sent_once():
    lm = SlowLM("A", seconds=0.02)
    judge = JudgeModel(lm)
    heard = ask_many(judge, *[QUESTION] * 20)
    assert [h.verdict for h in heard] == ["A"] * 20
    assert lm.calls == 1
    assert judge.spent.calls == 1
    assert judge.spent.cached == 19
    assert sum(not h.replies[0].is_cached for h in heard) == 1


def test_equal_questions_share_a_failure_too():
    lm = SlowLM(seconds=0.02, error=Unreachable("gone"))
    heard = ask_many(JudgeModel(lm), QUESTION, QUESTION, QUESTION)
    assert [h.status for h in heard] == [Status.INFRA_ERROR] * 3
    assert lm.calls == 1


def test_a_cancelled_asker_hands_the_question_to_the_next():
    lm = SlowLM("A", seconds=0.05)
    judge = JudgeModel(lm)

    async def run():
        heard = []

        async def impatient():
            with anyio.move_on_after(0.01):
                await judge.ask(QUESTION, read_letter)

        async def patient():
            await anyio.sleep(0.005)
            heard.append(await judge.ask(QUESTION, read_letter))

        async with anyio.create_task_group() as group:
            group.start_soon(impatient)
            group.start_soon(patient)
        return heard

    assert anyio.run(run)[0].verdict == "A"
    assert lm.calls == 2
    assert judge.spent.failed == 1


@pytest.mark.parametrize("where", ["memory", "file"])
def test_the_cache_answers_the_same_question_and_no_other(where, tmp_path):
    lm = ScriptedLM(lambda messages, index: "A")
    cache = CallLog(None if where == "memory" else tmp_path / "c" / "replies.jsonl")
    judge = JudgeModel(lm, cache=cache)
    first, second = ask(judge), ask(judge)
    assert (first.verdict, second.verdict) == ("A", "A")
    assert [first.replies[0].is_cached, second.replies[0].is_cached] == [False, True]
    others = [
        (judge, Question("pair", (Message("user", "Which then?"),))),
        (judge, Question("pair", QUESTION.messages, vote=1)),
        (JudgeModel(lm, cache=cache, sampling=Sampling(temperature=0.5)), QUESTION),
        (JudgeModel(lm, cache=cache, seed=1), QUESTION),
        (JudgeModel(ScriptedLM(["B"], name="other"), cache=cache), QUESTION),
    ]
    for other, question in others:
        assert not ask(other, question).replies[0].is_cached
    assert len(lm.calls) == 5


def test_a_cache_file_outlives_its_judge(tmp_path):
    path = tmp_path / "replies.jsonl"
    ask(JudgeModel(ScriptedLM(["A"]), cache=path))
    again = JudgeModel(ScriptedLM([]), cache=path)
    heard = ask(again)
    assert heard.verdict == "A"
    assert again.spent.calls == 0
    # Another reader reads the kept words anew.
    assert ask(again, read=lambda text: text.lower()).verdict == "a"


def test_failures_are_not_cached(tmp_path):
    path = tmp_path / "replies.jsonl"
    assert ask(JudgeModel(SlowLM(error=Unreachable("gone")), cache=path)).verdict is None
    assert ask(JudgeModel(SlowLM("A"), cache=path)).verdict == "A"


def test_a_file_that_is_no_cache_is_refused(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("these are notes, not a log" * 100)
    with pytest.raises(StoreError, match=r"does not end as|the file is damaged"):
        JudgeModel(ScriptedLM([]), cache=path)


def test_a_damaged_line_is_an_infra_error_not_a_verdict(tmp_path):
    path = tmp_path / "replies.jsonl"
    judge = JudgeModel(ScriptedLM(["A"]), cache=path)
    ask(judge)
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.write(b"x" * (len(data) - 1))
    heard = ask(judge)
    assert (heard.verdict, heard.status) == (None, Status.INFRA_ERROR)
    with pytest.raises(StoreError, match="line 1"):
        JudgeModel(ScriptedLM(["A"]), cache=path)


def test_one_file_is_cache_and_record(tmp_path):
    path = tmp_path / "judge.jsonl"
    for _ in range(2):
        judge = JudgeModel(ScriptedLM(["A"]), cache=path, record=path)
        assert [ask(judge).verdict, ask(judge).verdict] == ["A", "A"]
        assert judge.spent.calls + judge.spent.cached == 2
    assert [call.is_cached for call in read_calls(path)] == [False, True, True, True]
    assert ask(replay(path)).verdict == "A"
    assert ask(JudgeModel(open_lm(f"replay:{path}"))).verdict == "A"


def questions(count):
    return [Question("pair", (Message("user", f"Which one, {i}?"),)) for i in range(count)]


def test_a_budget_of_calls_is_exact_also_at_once():
    lm = SlowLM("A", seconds=0.01)
    judge = JudgeModel(lm, budget=Budget(calls=5))
    heard = ask_many(judge, *questions(12))
    assert lm.calls == 5
    assert sum(h.verdict == "A" for h in heard) == 5
    refused = [h for h in heard if h.verdict is None]
    assert {h.status for h in refused} == {Status.INFRA_ERROR}
    assert {h.reason for h in refused} == {"the budget of 5 calls is spent"}


def test_budgets_of_tokens_and_money_stop_the_next_call():
    lm = SlowLM("A")
    judge = JudgeModel(lm, budget=Budget(tokens=240))
    assert [ask(judge, q).verdict for q in questions(4)] == ["A", "A", None, None]
    assert judge.spent.tokens == 240
    assert (judge.spent.prompt_tokens, judge.spent.completion_tokens) == (200, 40)

    class Priced(SlowLM):
        prices = Prices(prompt_usd=1)

        async def sample(self, prompt, sampling):
            self.calls += 1
            return [Completion("A", cost_usd=0.4)]

    judge = JudgeModel(Priced(), budget=Budget(usd=1.0))
    heard = [ask(judge, q) for q in questions(4)]
    assert [h.verdict for h in heard] == ["A", "A", "A", None]
    assert heard[-1].reason == "the budget of $1 is spent"
    assert judge.spent.usd == pytest.approx(1.2)
    assert heard[0].evidence[0].cost_usd == 0.4


def test_tokens_that_nobody_counts_are_estimated_and_said_to_be():
    judge = JudgeModel(ScriptedLM(["A"]))
    ask(judge, Question("pair", (Message("user", "x" * 400),)))
    assert (judge.spent.prompt_tokens, judge.spent.completion_tokens) == (100, 1)
    assert judge.spent.estimated == 1


def test_cached_answers_cost_no_budget():
    judge = JudgeModel(ScriptedLM(["A"]), cache=CallLog(), budget=Budget(calls=1))
    assert [ask(judge).verdict for _ in range(3)] == ["A"] * 3
    assert (judge.spent.calls, judge.spent.cached) == (1, 2)


def test_every_call_is_on_record_and_replays_without_one(tmp_path):
    path = tmp_path / "judge.jsonl"
    live = judge_of(longer_wins, record=path)
    before = score(build_judge("direct", live), "Paris", "Paris, of course")
    lines = read_calls(path)
    assert [(c.kind, c.about, c.round, c.status) for c in lines] == [
        ("pair", ("task-1", "s0", "s1"), 0, Status.OK),
        ("pair", ("task-1", "s1", "s0"), 0, Status.OK),
    ]
    again = replay(path)
    assert score(build_judge("direct", again), "Paris", "Paris, of course") == before
    assert again.spent.calls == 0
    assert again.spent.cached == 2
    # Any other aggregation, and other settings of sampling, over the same answers.
    other = replay(path, sampling=Sampling(max_tokens=8), seed=5)
    strict = score(build_judge("direct", other, rule="strict"), "Paris", "Paris, of course")
    assert [r.value for r in strict] == [-1.0, 1.0]


def test_repairs_and_failures_replay_as_they_were(tmp_path):
    path = tmp_path / "judge.jsonl"
    ask(JudgeModel(ScriptedLM(["maybe", "B"]), record=path))
    assert [(c.round, c.status) for c in read_calls(path)] == [
        (0, Status.PARSE_ERROR),
        (1, Status.OK),
    ]
    again = ask(replay(path))
    assert (again.verdict, len(again.replies)) == ("B", 2)

    late = tmp_path / "late.jsonl"
    ask(JudgeModel(SlowLM(error=TimedOut("no answer within 5 s")), record=late))
    heard = ask(replay(late))
    assert heard.status is Status.TIMEOUT
    assert "no answer within 5 s" in heard.reason


def test_a_stricter_reader_of_a_record_is_a_parse_error_not_a_call(tmp_path):
    path = tmp_path / "judge.jsonl"
    ask(JudgeModel(ScriptedLM(["A"]), record=path))

    def strict(text):
        raise Unreadable("expected more than a letter")

    heard = ask(replay(path), read=strict)
    assert (heard.verdict, heard.status) == (None, Status.PARSE_ERROR)
    assert heard.reason == "expected more than a letter"


def test_what_was_not_recorded_has_no_verdict(tmp_path):
    path = tmp_path / "judge.jsonl"
    ask(JudgeModel(ScriptedLM(["A"]), record=path))
    heard = ask(replay(path), Question("pair", (Message("user", "Another one?"),)))
    assert (heard.verdict, heard.status) == (None, Status.INFRA_ERROR)
    assert "no recorded sample" in heard.reason


def test_a_question_that_failed_and_was_asked_again_replays_its_answer(tmp_path):
    path = tmp_path / "judge.jsonl"
    ask(JudgeModel(SlowLM(error=Unreachable("gone")), record=path))
    ask(JudgeModel(SlowLM("A"), record=path))
    assert ask(replay(path)).verdict == "A"


def test_votes_are_told_apart_in_a_record(tmp_path):
    path = tmp_path / "judge.jsonl"
    said = iter("AB")
    judge = JudgeModel(ScriptedLM(lambda messages, index: next(said)), record=path)
    votes = [Question("pair", QUESTION.messages, vote=v) for v in (0, 1)]
    assert [ask(judge, q).verdict for q in votes] == ["A", "B"]
    again = replay(path)
    assert [ask(again, q).verdict for q in reversed(votes)] == ["B", "A"]


def test_a_file_that_is_no_record_is_refused_before_the_first_call(tmp_path):
    path = tmp_path / "notes.md"
    path.write_text("# notes\nnothing else\n")
    with pytest.raises(StoreError, match="line 1"):
        JudgeModel(ScriptedLM(["A"]), record=path)
    assert path.read_text() == "# notes\nnothing else\n"
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    with pytest.raises(UserError, match="the log is empty"):
        replay(empty)


def test_a_record_of_two_models_asks_which(tmp_path):
    path = tmp_path / "judge.jsonl"
    ask(JudgeModel(ScriptedLM(["A"], name="one"), record=path))
    ask(JudgeModel(ScriptedLM(["B"], name="two"), record=path))
    with pytest.raises(UserError, match="choose one"):
        replay(path)
    with pytest.raises(UserError, match="Did you mean 'two'"):
        replay(path, model="twoo")
    assert ask(replay(path, model="two")).verdict == "B"


def test_one_judge_serves_several_event_loops():
    judge = JudgeModel(ScriptedLM(lambda messages, index: verdict("A")))
    pair = build_judge("direct", judge)
    for _ in range(3):
        assert anyio.run(checked, pair, a_task(), answers("x", "y"))[0].value == 0.0


def test_the_fingerprint_changes_with_what_changes_a_verdict():
    lm = ScriptedLM([])
    prints = {
        judge.fingerprint
        for judge in (
            JudgeModel(lm), JudgeModel(lm, repairs=0), JudgeModel(lm, seed=1),
            JudgeModel(lm, sampling=Sampling(temperature=1.0)),
            JudgeModel(ScriptedLM([], name="other")),
        )
    }  # fmt: skip
    assert len(prints) == 5
    assert JudgeModel(lm).fingerprint == JudgeModel(lm, budget=Budget(calls=1)).fingerprint


def test_a_record_that_was_deleted_begins_anew(tmp_path):
    path = tmp_path / "judge.jsonl"
    first = JudgeModel(ScriptedLM(["A"], name="one"), record=path)
    ask(first)
    path.unlink()
    ask(JudgeModel(ScriptedLM(["B"], name="two"), record=path))
    assert [call.model for call in read_calls(path)] == ["two"]


def test_a_budget_of_calls_is_exact_over_threads():
    budget, taken = Budget(calls=2000), [0] * 8

    def take(place):
        while True:
            try:
                budget.take()
            except BudgetSpent:
                return
            taken[place] += 1
            budget.save()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=take, args=(place,)) for place in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert (sum(taken), budget.spent.calls, budget.spent.cached) == (2000, 2000, 2000)


class Server(SlowLM):
    """A server's model under a name that others have too."""

    def __init__(self, text, identity):
        super().__init__(text)
        self.identity = identity


def test_servers_with_one_model_name_do_not_share_replies(tmp_path):
    cache, path = CallLog(), tmp_path / "judge.jsonl"
    one, other = (
        JudgeModel(Server(said, f"http://{said}/v1"), cache=cache, record=path) for said in "AB"
    )
    assert [ask(judge).verdict for judge in (one, other, one, other)] == ["A", "B", "A", "B"]
    assert (one.lm.calls, other.lm.calls) == (1, 1)
    assert one.fingerprint != other.fingerprint
    # A record goes by the model's name: whoever replays it has no server.
    assert ask(replay(path)).verdict == "A"


def test_one_recorded_vote_is_not_three(tmp_path):
    path = tmp_path / "judge.jsonl"
    first, second = (Question("pair", QUESTION.messages, vote=vote) for vote in range(2))
    warm = Sampling(temperature=0.6)
    ask(JudgeModel(ScriptedLM(["A"]), sampling=warm, record=path), first)
    again = replay(path, sampling=warm, seed=7)
    assert ask(again, first).verdict == "A"
    heard = ask(again, second)
    assert (heard.verdict, heard.status) == (None, Status.INFRA_ERROR)
    assert "other seeds" in heard.reason
    ask(JudgeModel(ScriptedLM(["B"]), sampling=warm, record=path), second)
    again = replay(path, sampling=warm, seed=7)
    assert [ask(again, one).verdict for one in (first, second)] == ["A", "B"]


def test_a_record_is_also_a_log_for_any_lm(tmp_path):
    path = tmp_path / "judge.jsonl"
    score(DirectPair(judge_of(longer_wins, record=path)), "a", "bb")
    lm = open_lm(f"replay:{path}")
    assert isinstance(lm, ReplayLM)
    assert [r.value for r in score(DirectPair(JudgeModel(lm)), "a", "bb")] == [-1.0, 1.0]
