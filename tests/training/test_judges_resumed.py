import fcntl
import json
import multiprocessing
import os
import signal

import anyio
import anyio.lowlevel
import pytest
from training_cases import finish, merged, outcome, trainer

from burnish.errors import StoreError
from burnish.lm.base import Completion
from burnish.lm.budget import Cost, Spent
from burnish.lm.call_log import Account, Call, PaidReplies, remove_paid_replies
from burnish.lm.http import Prices
from burnish.lm.replay import ScriptedLM
from burnish.records import Message
from burnish.rewards.judge_reward import LMPairJudge
from burnish.rewards.judges import Budget, JudgeModel, Question
from burnish.seeds import digest


class Server:
    """A judge over all starts of a run: counts what is paid, and ends the process when told."""

    name = "judge"
    prices = Prices(prompt_usd=1000.0, completion_usd=1000.0)

    def __init__(self, dies_at=()):
        self._paid = multiprocessing.Value("i", 0)
        self.dies_at = set(dies_at)

    @property
    def paid(self):
        """Calls of all processes."""
        return self._paid.value

    async def sample(self, prompt, sampling):
        await anyio.lowlevel.checkpoint()
        self._paid.value += 1
        if self.paid in self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        text = prompt[-1].content
        rating = 1 + int(digest(text), 16) % 10
        said = json.dumps({"reasons": "x", "rating": rating})
        return [
            Completion(said, prompt_tokens=90, completion_tokens=10, cost_usd=0.1, model="judge")
        ]

    async def score(self, *args, **more):
        raise NotImplementedError


def judged(**budget):
    """A recipe whose reward is the judge's rating."""
    reward = {"kind": "judge", "with": "point", "model": "http://127.0.0.1:9/v1#judge"}
    prices = {"prompt_usd": 1000.0, "completion_usd": 1000.0}
    return {
        "steps": 3,
        "rewards": [{**reward, **prices, "budget": budget}],
        "checkpoint": {"every": 2, "keep": 2},
        "evaluation": {"prompts": 3, "every": 2},
    }


@pytest.fixture
def serve(monkeypatch):
    """Put one server behind every judge that a recipe opens."""

    def use(server):
        monkeypatch.setattr("burnish.lm.named.open_lm", lambda name, **_: server)
        return server

    return use


def run_until_killed(folder, table):
    """Train in a process of its own, which dies without a word."""
    child = os.fork()
    if not child:
        try:
            list(trainer(folder, table).run())
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def judge_of(started):
    return started.scorer.children[0].judge


def test_a_killed_run_asks_only_what_it_was_not_answered(tmp_path, serve):
    """Killed in the first evaluation, in a step before the checkpoint and in one after it."""
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    server = serve(Server())
    whole = trainer(tmp_path / "whole", judged())
    finish(whole)
    needed = server.paid
    assert needed > 30
    spent = judge_of(whole).spent

    deaths = (2, 9, 26)
    server = serve(Server(deaths))
    for _ in deaths:
        run_until_killed(tmp_path / "killed", judged())
    last = trainer(tmp_path / "killed", judged())
    finish(last)
    assert server.paid == needed + len(deaths), "one call was lost at each death, and no more"
    again = judge_of(last).spent
    assert again.calls - again.failed == needed, "every answer is counted once"
    # What was in flight at a death may have been billed: it counts, estimated.
    assert again.failed == again.estimated >= len(deaths)
    assert again.usd > spent.usd
    first, second = (outcome(tmp_path / name / "run") for name in ("whole", "killed"))
    assert {key for key in first if first[key] != second[key]} == set()


def test_a_limit_is_that_of_the_run_not_of_each_start(tmp_path, serve):
    server = serve(Server(dies_at=(5, 9)))
    table = merged(judged(calls=20), {"guards": {"failed_share": 1.0}})
    run_until_killed(tmp_path, table)
    run_until_killed(tmp_path, table)
    last = trainer(tmp_path, table)
    finish(last)
    assert server.paid <= 20  # what was in flight at a death counts too
    assert judge_of(last).spent.calls == 20
    assert judge_of(last).budget.exhausted == "the budget of 20 calls is spent"


def test_a_finished_run_started_again_asks_nothing(tmp_path, serve):
    server = serve(Server())
    finish(trainer(tmp_path, judged()))
    paid = server.paid
    finish(trainer(tmp_path, judged()))
    assert server.paid == paid


QUESTION = Question("pair", (Message("user", "Which one?"),))


def opened(folder, lines, **limits):
    """A judge that says these lines, with the paid replies of a run."""
    judge = JudgeModel(ScriptedLM(list(lines)), budget=Budget(**limits))
    return judge, PaidReplies(folder, [judge])


def ask(judge):
    return anyio.run(judge.ask, QUESTION, str).verdict


def test_replies_come_back_in_their_order_and_to_their_part_alone(tmp_path):
    path = tmp_path
    judge, paid = opened(path, "ab")
    paid.begin("step 1")
    assert [ask(judge), ask(judge)] == ["a", "b"]
    paid.close()

    judge, paid = opened(path, "c")
    paid.begin("step 1")
    assert [ask(judge), ask(judge), ask(judge)] == ["a", "b", "c"]
    assert judge.spent.calls == 3
    paid.close()

    judge, paid = opened(path, "d")
    paid.begin("step 2")
    assert ask(judge) == "d"
    paid.begin("step 1")
    with pytest.raises(Exception, match="has said all"):
        raise RuntimeError(anyio.run(judge.ask, QUESTION, str).reason)


def test_a_repeated_reply_costs_and_reads_as_the_first_time(tmp_path):
    path, record = tmp_path, tmp_path / "record.jsonl"
    heard = []
    for _ in range(2):
        judge = JudgeModel(Server(), record=record)
        paid = PaidReplies(path, [judge])
        paid.begin("step 1")
        heard.append(anyio.run(judge.ask, QUESTION, str))
        paid.close()
        del judge
    assert heard[0].evidence == heard[1].evidence
    assert heard[1].evidence[0].cost_usd == 0.1
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert [line.get("is_cached", False) for line in lines] == [False, True]


def test_calls_under_way_at_the_death_count_as_their_most(tmp_path):
    judge, paid = opened(tmp_path, "", tokens=1000)
    judge.budget.settle(Cost(10, 5), judge.budget.take(Cost(20, 20)))
    judge.budget.take(Cost(30, 70, 0.5))
    paid.close()  # and no word of the second call
    judge, _ = opened(tmp_path, "", tokens=1000)
    assert judge.spent == Spent(
        calls=2, failed=1, prompt_tokens=40, completion_tokens=75, usd=0.5, estimated=1
    )
    judge, _ = opened(tmp_path, "", tokens=1000)
    assert judge.spent.tokens == 115, "they are counted once"


def test_judges_of_one_run_are_told_apart(tmp_path):
    """Two judges that ask the same, and one that is asked in pairs."""
    path = tmp_path
    for lines in (("a", "b"), ((), ())):
        judges = [JudgeModel(ScriptedLM(list(said))) for said in lines]
        scores = ScriptedLM(["<scores>9, 1</scores>"] if lines[0] else [])
        pairs = LMPairJudge(scores)
        paid = PaidReplies(path, [*judges, pairs.model])
        paid.begin("step 1")
        assert [ask(judge) for judge in judges] == ["a", "b"]
        (opinion,) = anyio.run(pairs.pair_verdicts, [("q", "x", "y")])
        assert opinion.scores == (9.0, 1.0)
        paid.close()


def test_what_cannot_be_written_is_said_once_and_the_run_goes_on(tmp_path, caplog):
    judge, paid = opened(tmp_path, "ab")
    paid.begin("step 1")
    assert ask(judge) == "a"
    with paid.path.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert ask(judge) == "b"
    assert sum("not kept" in record.getMessage() for record in caplog.records) == 1


def test_an_account_survives_its_file():
    import msgspec

    account = Account(Spent(1, 2, 3, 4, 5, 0.5, 6), Cost(7, 8, 0.25), 2)
    assert msgspec.json.decode(msgspec.json.encode(account), type=Account) == account


def test_two_reads_at_once_take_two_replies(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    judge, paid = opened(tmp_path, "")
    asked = Call("key", "m")
    paid.begin("step 1")
    for number in range(64):
        judge.paid.write(Call("key", "m", completions=(Completion(str(number)),)))
    paid.begin("step 1")  # the same part again, as a continued run begins it
    with ThreadPoolExecutor(8) as pool:
        read = list(pool.map(lambda _: judge.paid.read(asked).completions[0].text, range(64)))
    assert sorted(map(int, read)) == list(range(64))


def test_closed_replies_are_neither_read_nor_written(tmp_path):
    judge, paid = opened(tmp_path, "ab")
    paid.begin("step 1")
    assert ask(judge) == "a"
    paid.close()
    assert ask(judge) == "b", "the judge goes on outside the run"
    judge, _ = opened(tmp_path, "")
    assert judge.spent.calls == 1


def test_a_reset_removes_the_files_of_all_processes(tmp_path):
    for rank in (0, 3):
        judge = JudgeModel(ScriptedLM(["a"]))
        paid = PaidReplies(tmp_path, [judge], rank=rank)
        paid.begin("step 1")
        assert ask(judge) == "a"
        paid.close()
    (tmp_path / "config.json").touch()
    assert len(list(tmp_path.iterdir())) == 3
    remove_paid_replies(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_a_spent_budget_may_be_raised_and_nothing_else_of_a_reward():
    from burnish.config import FREE, Config, load

    def config(**changed):
        reward = {"kind": "judge", "with": "point", "model": "tiny", "name": "r", **changed}
        rewards = [reward, {"kind": "length", "name": "l", "max": 9}]
        return load(Config, {"task": {"kind": "arithmetic"}, "rewards": rewards})

    begun = config(budget={"calls": 5})
    raised = config(budget={"calls": 50}, requests_per_minute=9)
    assert raised.digest(FREE) == begun.digest(FREE)
    assert raised.changes(begun.flat(), FREE) == []
    other = config(budget={"calls": 5}, temperature=0.5)
    assert other.changes(begun.flat(), FREE) == ["rewards.0.temperature: 0.0 -> 0.5"]


@pytest.mark.parametrize("damage", ["text", "line"])
def test_a_damaged_file_is_one_line(tmp_path, damage):
    path = tmp_path / "judges.jsonl"
    if damage == "text":
        path.write_text("this is no log, but long enough to be taken for one" * 20)
    else:
        judge, paid = opened(tmp_path, "a")
        paid.begin("step 1")
        ask(judge)
        paid.close()
        path.write_text('{"key":"spent","owner":"0 scripted","account":{\n' + path.read_text())
    with pytest.raises(StoreError, match=r"judges\.jsonl.*Remove it to go on"):
        opened(tmp_path, "")
