"""`burnish.score`, `judge`, `generate`, `evaluate` and `compare`: one line each."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import burnish
from burnish import Evidence, Reward, memory
from burnish.errors import UserError
from burnish.lm import ScriptedLM


def test_a_reward_is_scored_with_its_evidence():
    def cites(text: str, source: str) -> Reward:
        return Reward("x", 0.5, evidence=(Evidence("quote", f"{text} in {source}"),))

    found = burnish.score(cites, "Where?", "here", source="there")
    assert (found.value, found.status, found.parts) == (0.5, "ok", {"cites": 0.5})
    assert repr(found).splitlines() == [
        "prompt: Where?", "answer: here", "cites 0.5", "  quote: here in there",
    ]  # fmt: skip


def test_a_reward_that_cannot_judge_has_no_number():
    found = burnish.score(lambda text: None, "Hi", "x")
    assert (found.value, found.status) == (None, "abstain")

    def breaks(text: str) -> float:
        raise ValueError("no")

    assert burnish.score(breaks, "Hi", "x").status == "reward_error"


def test_a_group_reward_sees_all_answers():
    def longest(texts: list[str]) -> list[float]:
        return [float(len(text) == max(map(len, texts))) for text in texts]

    found = burnish.score(longest, "Hi", ["a", "bb"])
    assert [one.value for one in found] == [0.0, 1.0]


def test_calls_work_inside_a_running_loop():
    async def cell() -> Any:
        return burnish.score("numeric", "3 + 4", "7", answer="7")

    assert asyncio.run(cell()).value == 1.0


def test_a_judge_explains_itself():
    model = ScriptedLM(
        ['{"reasons": "Seven.", "winner": "A"}', '{"reasons": "Seven.", "winner": "B"}']
    )
    found = burnish.judge("What is 3 + 4?", "7", "8", model=model)
    assert (found.best, found.values) == ((0,), (1.0, -1.0))


def test_a_judge_without_a_verdict_gives_no_number():
    model = ScriptedLM(lambda messages, index: "I cannot say.")
    found = burnish.judge("What is 3 + 4?", "7", "8", model=model)
    assert (found.best, found.values) == (None, (None, None))


def test_answers_are_generated_in_order():
    lm = ScriptedLM({"a": "1", "b": "2"})
    found = burnish.generate(lm, ["a", "b"], n=2)
    assert found.texts == ["1", "1", "2", "2"]
    assert found.prompts == ("a", "a", "b", "b")
    assert burnish.generate(lm, "b").texts == ["2"]
    assert burnish.generate(lm, [{"role": "user", "content": "a"}]).texts == ["1"]


def test_a_model_is_evaluated_on_every_row():
    rows = [{"prompt": f"Say {n}.", "answer": str(n)} for n in range(4)]
    lm = ScriptedLM({f"Say {n}.": str(min(n, 2)) for n in range(4)})
    found = burnish.evaluate(lm, rows, rewards="match")
    assert (found.value, len(found)) == (0.75, 4)
    low, high = found.interval or (1.0, 0.0)
    assert low < 0.75 < high
    assert "0.750" in repr(found)


def test_runs_are_evaluated_and_compared(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small: dict[str, Any] = {
        "steps": 1, "evaluation": {"prompts": 6},
        "rollout": {"prompts": 2, "samples": 4, "max_tokens": 4}, "show": False,
    }  # fmt: skip
    one, two = (burnish.train("tiny", seed=seed, **small) for seed in (1, 2))
    stored = one.evaluations().iloc[-1]
    found = burnish.evaluate(one, prompts=6)
    assert (found.value, len(found)) == (stored.score, 6)
    both = burnish.compare(one, two.name)
    assert both.difference is not None
    assert both.settings == {"run.seed": (1, 2)}
    assert both.verdict in repr(both)
    three = burnish.train("tiny", "task.level=2", seed=1, **small)
    table = burnish.compare(one, two.name, three.folder)
    assert [[run.seed for run in group.runs] for group in table.groups] == [[1, 2], [1]]
    assert table.groups[table.baseline].runs[0].name == one.folder.name
    other = burnish.compare(one, two, three, baseline=three.folder.name)
    assert other.groups[other.baseline].runs[0].name == three.folder.name
    with pytest.raises(UserError, match="is given twice"):
        burnish.compare(one, two, one)
    with pytest.raises(UserError, match="run 3: got 3"):
        burnish.compare(one, two, 3)  # type: ignore[call-overload]


def test_a_run_with_a_reward_of_another_process_is_evaluated_with_the_reward_given_again(
    tmp_path, monkeypatch
):
    def has_digit(text: str, answer: str) -> float:
        return float(answer in text)

    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"Write {n}.", "answer": str(n)} for n in range(10)]
    small = {"rollout": {"prompts": 1, "samples": 2, "max_tokens": 2}, "evaluation": {"prompts": 1}}
    burnish.train(
        "grpo", model="tiny", data=rows, rewards=[has_digit], steps=1, show=False, name="a", **small
    )
    monkeypatch.setattr(memory, "_kept", {})  # as in a new process
    run = burnish.load_run("a")
    with pytest.raises(UserError, match=r"give it again, as rewards=\[has_digit\]; or name a file"):
        burnish.evaluate(run)
    again = burnish.evaluate(run, rewards=[has_digit])
    assert (
        again.record()
        == burnish.evaluate(run, rewards=["runs/a/code/has_digit.py:has_digit"]).record()
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: burnish.score("numeric", "x", "7"), "reward 'numeric' needs 'answer'"),
        (lambda: burnish.score("numeric", 5, "7", answer=1), "prompt: got 5, expected a text"),
        (lambda: burnish.score({"kind": "numeric", "wight": 1}, "x", "7"), "reward.weight"),
        (lambda: burnish.judge("x", model="tiny"), "responses: got (), expected at least one"),
        (lambda: burnish.judge("x", "a", "b", model=3), "model: got int; expected smollm2, tiny"),
        (lambda: burnish.generate("tiny", []), "prompts: got [], expected a text, a list"),
        (lambda: burnish.generate("tiny", "x", tempratur=1), "expected n, temperature, top_k"),
        (lambda: burnish.generate("no-such", "x"), "there is no model 'no-such'"),
        (lambda: burnish.evaluate("tiny"), "task: got None; expected a recipe"),
        (lambda: burnish.evaluate("tiny", [{"prompt": "x"}]), "rewards: got None beside data"),
        (lambda: burnish.load_run("a"), "no run 'a'"),
    ],
)
def test_mistakes_get_one_line(call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        call()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_folder_of_a_run_names_its_newest_weights(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = burnish.train("tiny", "steps=1", evaluation={"prompts": 0}, show=False)
    by_folder = burnish.generate(str(run.folder), ["hello"], max_tokens=4, seed=1)
    assert by_folder[0].text == burnish.generate(run, ["hello"], max_tokens=4, seed=1)[0].text
