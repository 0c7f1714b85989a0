"""Prompt optimisation: what is accepted, what never is, and that a killed search goes on."""

import random
import re
from functools import partial

import anyio
import msgspec
import pytest

import burnish
from burnish.agents.prompt import (
    Candidate,
    ModelProposer,
    PromptSettings,
    Situation,
    Slices,
    WorkedExamples,
    compare_marks,
    optimise,
    prompt_report,
    system_prompt,
    verdict_line,
    with_system_prompt,
)
from burnish.agents.prompt.prompt_search import Entry, _Search
from burnish.agents.prompt.proposers import Case, JoinedProposers
from burnish.api.prompt import shrunk_slices, slices_of
from burnish.bench.statistics import sign_flip
from burnish.cli.prompt import optimise as command
from burnish.errors import ArgumentError, ModelError, UserError
from burnish.lm.lines import LineFile
from burnish.lm.replay import ScriptedLM
from burnish.records import Message, Task
from burnish.rewards import from_function
from burnish.rollouts import AgentRollout, EnvRollout, FunctionRollout
from burnish.seeds import derive


def correct(task, response):
    """1 where the response is the answer."""
    return float(response.text == task.fields["answer"])


def tasks(count, start=0, system=""):
    first = (Message("system", system),) if system else ()
    return [
        Task(f"t{i}", (*first, Message("user", f"What is {i}?")), {"answer": str(i)})
        for i in range(start, start + count)
    ]


def slices(shown=8, trial=40, confirm=40):
    return Slices(tasks(shown), tasks(trial, 100), tasks(confirm, 1000))


class Ideas:
    """A proposer with a list of prompts, and a memory of what it saw."""

    name = "ideas"

    def __init__(self, *rounds):
        self.rounds, self.seen = list(rounds), []

    async def propose(self, seen, count, seed):
        self.seen.append(seen)
        return [Candidate(text, "idea") for text in self.rounds[len(self.seen) - 1]]


def follower(messages, index):
    """Right where the prompt asks for it, and on even numbers else."""
    prompt = messages[0].text if messages[0].role == "system" else ""
    number = messages[-1].text.split()[2].rstrip("?")
    if prompt == "Be right.":
        return number
    return number if int(number) % 2 == 0 else "no idea"


def search(lm, proposer, *, cut=None, **more):
    scorer = from_function(correct)
    settings = PromptSettings(**{"rounds": 2, "candidates": 3, **more.pop("settings", {})})
    cut = cut or slices()
    return anyio.run(partial(optimise, lm, cut, scorer, proposer, settings, **more))


def test_a_better_prompt_is_accepted_and_confirmed():
    lines = []
    ideas = Ideas(["Be kind.", "Be right.", "Be right. "], ["Be right.", "Be good."])
    result = search(ScriptedLM(follower), ideas, prompt="Be brief.", tell=lines.append)
    assert (result.prompt, result.is_confirmed) == ("Be right.", True)
    assert result.start_score == 0.5
    assert [(t.round, t.candidate.prompt, t.is_accepted) for t in result.tried] == [
        (1, "Be kind.", False), (1, "Be right.", True), (2, "Be good.", False),
    ]  # fmt: skip
    accepted = result.tried[1].paired
    assert (accepted.before, accepted.after) == (0.5, 1.0)
    assert accepted.p <= PromptSettings(rounds=2, candidates=3).level == 0.05 / 6
    assert result.tried[2].verdict == "not better"
    assert (result.confirmation.before, result.confirmation.after) == (0.5, 1.0)
    assert lines[0] == "present prompt: 0.500 on 40 tasks"
    assert len(lines) == 4


def test_what_the_proposer_sees_is_the_shown_slice_alone():
    ideas = Ideas(["Be right."], ["x"])
    search(ScriptedLM(follower), ideas, settings={"rounds": 2})
    first, second = ideas.seen
    assert [case.question for case in first.failures] == [f"What is {i}?" for i in (1, 3, 5, 7)]
    assert [case.answer for case in first.solved] == ["0", "2", "4", "6"]
    assert first.failures[0].score == 0.0
    assert first.failures[0].why == ""
    assert (second.prompt, second.failures) == ("Be right.", [])


def test_the_winner_of_a_round_is_the_best_that_passed():
    def graded(messages, index):
        prompt = messages[0].text if messages[0].role == "system" else ""
        number = messages[-1].text.split()[2].rstrip("?")
        share = {"good": 6, "best": 9}.get(prompt, 1)
        return number if int(number) % 10 < share else "no"

    result = search(ScriptedLM(graded), Ideas(["good", "best"], []))
    assert [(t.is_accepted, t.verdict) for t in result.tried] == [
        (False, "passed; another was better"), (True, "accepted"),
    ]  # fmt: skip
    assert result.prompt == "best"


def test_of_equal_candidates_the_first_one_takes_the_place():
    def graded(messages, index):
        prompt = messages[0].text if messages[0].role == "system" else ""
        number = messages[-1].text.split()[2].rstrip("?")
        return number if prompt in ("one", "two") or int(number) % 10 < 1 else "no"

    result = search(ScriptedLM(graded), Ideas(["one", "two"], []))
    assert [(t.is_accepted, t.verdict) for t in result.tried] == [
        (True, "accepted"), (False, "passed; an equal one came first"),
    ]  # fmt: skip


def test_what_is_not_confirmed_is_not_used():
    def lucky(messages, index):
        """Right on the trial slice alone."""
        prompt = messages[0].text if messages[0].role == "system" else ""
        number = messages[-1].text.split()[2].rstrip("?")
        return number if prompt == "lucky" and 100 <= int(number) < 200 else "no"

    result = search(ScriptedLM(lucky), Ideas(["lucky"], []))
    assert (result.best, result.prompt, result.is_confirmed) == ("lucky", "", False)
    assert "was not confirmed" in verdict_line(result)


def test_identical_candidates_are_never_accepted():
    """Prompts that change nothing but the luck: the chance to accept any is at most alpha."""
    alpha, accepted = 0.2, 0
    searches = 30

    for number in range(searches):

        def luck(messages, index, number=number):
            prompt = messages[0].text if messages[0].role == "system" else ""
            text = messages[-1].text
            right = random.Random(derive(number, prompt, text)).random() < 0.5
            return text.split()[2].rstrip("?") if right else "no"

        ideas = Ideas(*[[f"{turn} {i}" for i in range(3)] for turn in range(2)])
        settings = {"alpha": alpha, "rounds": 2, "candidates": 3}
        cut = slices(shown=2, trial=24, confirm=2)
        result = search(ScriptedLM(luck), ideas, cut=cut, settings=settings)
        accepted += result.best != result.start
    assert accepted / searches <= alpha


def test_marks_are_compared_in_pairs():
    found = compare_marks([0, 1, None, 0], [1, 1, 1, None])
    assert (found.difference.size, found.dropped, found.lost) == (2, 2, 1)
    assert found.p == sign_flip([1.0, 0.0]) == 1.0
    assert compare_marks([None], [1]) is None
    assert not compare_marks([0] * 8, [1] * 7 + [None]).is_better(1.0)
    # Two answers lost are not made good by two others that can be scored now.
    swapped = compare_marks([0] * 8 + [1, 1, None, None], [1] * 8 + [None, None, 1, 1])
    assert (swapped.p < 0.05, swapped.lost, swapped.is_better(0.05)) == (True, 2, False)
    with pytest.raises(ArgumentError, match="finite number"):
        compare_marks([0.0], [float("nan")])
    with pytest.raises(ArgumentError, match="after"):
        compare_marks([0.0], [0.0, 1.0])


# --- resume


class Dies(ScriptedLM):
    """A model that is lost after so many answers."""

    def __init__(self, script, most):
        super().__init__(script)
        self.most = most

    async def sample(self, prompt, sampling):
        if len(self.calls) >= self.most:
            raise KeyboardInterrupt
        return await super().sample(prompt, sampling)


@pytest.mark.parametrize("most", [3, 30, 75, 120, 200])
def test_a_killed_search_goes_on_where_it_stopped(tmp_path, most):
    ideas = [["Be kind.", "Be right."], ["Be good."]]
    whole = search(ScriptedLM(follower), Ideas(*ideas))
    journal = tmp_path / "prompt.journal.jsonl"
    with pytest.raises(KeyboardInterrupt):
        search(Dies(follower, most), Ideas(*ideas), journal=journal)
    known = journal.read_text().count("\n")
    again = ScriptedLM(follower)

    class Once(Ideas):
        async def propose(self, seen, count, seed):
            self.seen = [None] * (2 if seen.prompt == "Be right." else 1)
            return [Candidate(text, "idea") for text in self.rounds[len(self.seen) - 1]]

    resumed = search(again, Once(*ideas), journal=journal)
    assert msgspec.json.encode(resumed) == msgspec.json.encode(whole)
    assert len(again.calls) < whole.spending.answers or known == 0
    third = ScriptedLM(follower)
    assert search(third, Once(*ideas), journal=journal) == whole
    assert third.calls == []


GAME = """
async def play(task, players, seed):
    await players.generate(players.session(task.messages))

class Asks:
    tools = ()
    async def reset(self, task, seed):
        return Observation(task.messages)
    async def step(self, message):
        return Observation(done=True)

def agent(task, *, base_url, api_key):
    return "no idea"
"""


@pytest.mark.parametrize("kind", ["function", "env", "agent", "program"])
def test_a_search_with_rollouts_of_ones_own_resumes_until_the_code_changes(tmp_path, kind):
    settings = {
        "function": FunctionRollout(path="game.py:play"),
        "env": EnvRollout(path="game.py:Asks"),
        "agent": AgentRollout(path="game.py:agent"),
        "program": AgentRollout(command=("python", "game.py")),
    }[kind]
    file = tmp_path / "game.py"

    def base(text):
        file.write_text(f"from burnish.rollouts import Observation\n{text}")
        rollout = settings.build_evaluation(tmp_path)
        journal = LineFile(tmp_path / "journal.jsonl", Entry)
        lm, scorer = ScriptedLM(follower), from_function(correct)
        return _Search(lm, scorer, PromptSettings(), rollout, "", journal).base

    first = base(GAME)
    assert base(GAME) == first
    # Every one of them reads another task, opens elsewhere or answers something else.
    edited = GAME.replace("task.messages", "task.messages[-1:]").replace("no idea", "none")
    assert base(edited) != first


def test_a_search_with_a_function_resumes_without_an_answer(tmp_path):
    (tmp_path / "game.py").write_text(GAME.replace("Observation", "dict"))
    play = FunctionRollout(path="game.py:play")
    journal = tmp_path / "journal.jsonl"
    more = {"cut": slices(2, 8, 8), "journal": journal, "settings": {"rounds": 1}}
    whole = search(ScriptedLM(follower), Ideas(["x"]), rollout=play.build(tmp_path), **more)
    again = ScriptedLM(follower)
    more["settings"] = {"rounds": 1}
    assert search(again, Ideas(["x"]), rollout=play.build(tmp_path), **more) == whole
    assert again.calls == []


def test_what_failed_outside_is_asked_again_by_the_next_start(tmp_path):
    """A server that was gone for one answer, and a proposer's 503."""

    class Flaky(ScriptedLM):
        async def sample(self, prompt, sampling):
            if "What is 103?" in prompt[-1].text:
                raise ModelError("the server is gone")
            return await super().sample(prompt, sampling)

    class Broken(Ideas):
        async def propose(self, seen, count, seed):
            raise ModelError("503")

    def go(lm, proposer):
        settings = {"rounds": 1, "candidates": 1}
        return search(lm, proposer, settings=settings, journal=tmp_path / "journal.jsonl")

    first = go(Flaky(follower), Broken())
    assert first.problems == ("round 1: ideas: 503",)
    ideas, lm = Ideas(["Be right."]), ScriptedLM(follower)
    second = go(lm, ideas)
    assert (len(ideas.seen), second.problems, second.is_confirmed) == (1, (), True)
    texts = [call.prompt[-1].text for call in lm.calls]
    assert "What is 103?" in texts
    assert "What is 139?" in texts[-200:]
    assert "What is 3?" not in texts  # the shown slice failed nowhere
    assert second == search(
        ScriptedLM(follower), Ideas(["Be right."]), settings={"rounds": 1, "candidates": 1}
    )


def test_proposals_belong_to_the_shown_tasks(tmp_path):
    def go(shown, ideas):
        cut = Slices(shown, tasks(8, 100), tasks(8, 1000))
        settings = {"rounds": 1}
        journal = tmp_path / "journal.jsonl"
        search(ScriptedLM(follower), ideas, cut=cut, settings=settings, journal=journal)
        return len(ideas.seen)

    assert go(tasks(4), Ideas(["x"])) == 1
    assert go(tasks(4), Ideas(["x"])) == 0
    assert go(tasks(4, 50), Ideas(["x"])) == 1


# --- proposers


def case(number, score=1.0):
    return Case(f"What is {number}?", str(number), score, "evidence: seen")


def test_worked_examples_come_from_solved_tasks():
    seen = Situation("Be brief.", [case(1, 0.0)], [case(2), case(4)])
    found = anyio.run(WorkedExamples().propose, seen, 3, 1)
    assert [text.origin for text in found] == [f"worked examples, {n}" for n in (1, 2, 2)]
    assert found[1].prompt.startswith("Be brief.\n\nExamples:\n\nQuestion: What is ")
    assert "What is 1?" not in found[1].prompt
    again = Situation(found[1].prompt, [], [case(6)])
    (next_one,) = anyio.run(WorkedExamples((1,)).propose, again, 1, 2)
    assert next_one.prompt == "Be brief.\n\nExamples:\n\nQuestion: What is 6?\nAnswer: 6"
    assert anyio.run(WorkedExamples().propose, Situation("", [case(1, 0.0)], []), 2, 1) == []


def test_shuffled_examples_never_have_their_own_answer():
    seen = Situation("", [], [case(n) for n in (2, 4, 6, 8)])
    found = anyio.run(WorkedExamples((4,), shuffled=True).propose, seen, 20, 1)
    pairs = [p for one in found for p in re.findall(r"What is (\d)\?\nAnswer: (\d)", one.prompt)]
    assert len(pairs) == 80
    assert all(question != answer for question, answer in pairs)
    alone = Situation("", [], [case(2)])
    assert anyio.run(WorkedExamples(shuffled=True).propose, alone, 2, 1) == []


def test_a_model_reads_failures_and_writes_prompts():
    lm = ScriptedLM(["Sure! <prompt>\nBe right.\n</prompt> Good luck", "Be good."])
    seen = Situation("Be brief.", [case(1, 0.0), case(3, 0.0)], [])
    found = anyio.run(ModelProposer(lm).propose, seen, 2, 1)
    assert [one.prompt for one in found] == ["Be right.", "Be good."]
    asked = lm.calls[0].prompt[0].text
    assert "Be brief." in asked
    assert "evidence: seen" in asked


def test_a_proposer_that_fails_is_named_and_the_search_goes_on():
    class Broken(Ideas):
        async def propose(self, seen, count, seed):
            raise ModelError("the server is gone")

    result = search(ScriptedLM(follower), Broken())
    assert result.problems == tuple(f"round {i}: ideas: the server is gone" for i in (1, 2))
    assert "the server is gone" in prompt_report(result)


# --- slices and prompts


def test_slices_share_no_question():
    with pytest.raises(UserError, match="also stands in the shown slice"):
        search(ScriptedLM(follower), Ideas([]), cut=Slices(tasks(3), tasks(3), tasks(3, 10)))


def test_system_prompts_are_found_and_replaced():
    assert system_prompt(tasks(3, system="Be brief.")) == "Be brief."
    assert system_prompt([*tasks(1, system="a"), *tasks(1, system="b")]) == ""
    (task,) = tasks(1, system="old")
    assert [m.content for m in with_system_prompt(task, "").messages] == ["What is 0?"]


def test_one_call_writes_the_prompt_the_report_and_the_journal(tmp_path):
    rows = [{"prompt": f"What is {i}?", "answer": str(i)} for i in range(120)]
    out = tmp_path / "deep" / "prompt.txt"
    found = burnish.optimise_prompt(
        ScriptedLM(follower), rows, rewards="match", proposer=Ideas(["Be right."], []), rounds=2,
        candidates=1, shown=10, trial=40, confirm=40, out=out,
    )  # fmt: skip
    assert found.is_confirmed
    assert out.read_text() == "Be right.\n"
    assert "+Be right." in (tmp_path / "deep" / "prompt.report.md").read_text()
    assert (tmp_path / "deep" / "prompt.journal.jsonl").stat().st_size
    assert found.sizes == (10, 40, 40)


def test_few_rows_keep_their_shares():
    from burnish.tasks.base import FiniteTasks

    few = FiniteTasks("few", frozenset(), "", 0, tuple(tasks(18)), ())
    assert [len(part) for part in slices_of(few, 10, 40, 40)] == [2, 8, 8]
    held = FiniteTasks("held", frozenset(), "", 0, tuple(tasks(9)), tuple(tasks(5, 50)))
    cut = slices_of(held, 3, 4, 40)
    assert [len(part) for part in cut] == [3, 4, 5]
    assert shrunk_slices(cut, (3, 4, 40)) == "fewer tasks than asked for: confirm 5 of 40"
    assert shrunk_slices(cut, (3, 4, 5)) == ""
    one = FiniteTasks("one", frozenset(), "", 0, tuple(tasks(9)), tuple(tasks(1, 50)))
    with pytest.raises(UserError, match="leaves 1 task to confirm a prompt on; expected at least"):
        slices_of(one, 3, 4, 40)
    assert len(slices_of(one, 3, 4, 1).confirm) == 1  # as asked


def test_the_present_prompt_is_never_overwritten(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompt.txt").write_text("Be brief.")
    with pytest.raises(UserError, match="would overwrite it; choose another file"):
        command(words=["tiny"], prompt=tmp_path / "prompt.txt")
    assert (tmp_path / "prompt.txt").read_text() == "Be brief."


def test_one_proposer_that_fails_leaves_the_others():
    class Broken(Ideas):
        async def propose(self, seen, count, seed):
            raise ModelError("503")

    joined = JoinedProposers(Broken(), Ideas(["Be right."], ["x"]))
    result = search(ScriptedLM(follower), joined)
    assert result.prompt == "Be right."
    assert result.problems == ("round 1: ideas: 503", "round 2: ideas: 503")
    found = anyio.run(JoinedProposers(Broken(), Ideas(["a"])).propose, Situation("", [], []), 2, 1)
    assert [one.prompt for one in found] == ["a"]
    with pytest.raises(ModelError, match="503"):
        anyio.run(JoinedProposers(Broken()).propose, Situation("", [], []), 2, 1)
