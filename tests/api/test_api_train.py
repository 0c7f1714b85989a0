"""`burnish.train`: rows and functions in memory, continued, shown, stopped and kept."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import burnish
from burnish import Evidence, Reward
from burnish.errors import UserError

ROWS = [{"prompt": f"Write the digit {n}.", "answer": str(n % 10)} for n in range(12)]
SMALL: dict[str, Any] = {
    "model": "tiny", "rollout": {"prompts": 2, "samples": 4, "max_tokens": 4},
    "evaluation": {"prompts": 2}, "show": False,
}  # fmt: skip


def has_digit(text: str, answer: str) -> float:
    """Whether the answer stands in the text."""
    return float(answer in text)


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Runs land in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(**more: Any) -> burnish.Run:
    return burnish.train(
        **{"data": ROWS, "rewards": [has_digit], "steps": 2, "recipe": "grpo", **SMALL, **more}
    )


def test_rows_and_functions_train_and_the_same_call_gives_the_same_run():
    run = train()
    assert (run.status, run.steps) == ("finished", 2)
    assert len(run.samples(split="train")) == 2 * 2 * 4
    assert "part/has_digit" in run.samples().columns
    assert list(run.metrics().index) == [0, 1]
    assert (run.weights / "model.safetensors").is_file()
    assert train().folder == run.folder
    assert [row["name"] for _, row in burnish.load_runs().iterrows()] == [run.name]
    assert train(again=True).folder.name == f"{run.name}-2"


def test_what_lives_in_memory_is_kept_in_the_folder():
    run = train()
    rows = list((run.folder / "data").glob("rows-*.jsonl"))
    assert len(rows) == 1
    assert rows[0].read_text().count("\n") == len(ROWS)
    assert "return float(answer in text)" in (run.folder / "code" / "has_digit.py").read_text()
    assert str(rows[0]) in (run.folder / "config.toml").read_text()
    assert run.config.steps == 2


def test_another_function_or_other_rows_are_another_run():
    first = train()

    def has_digit(text: str, answer: str) -> float:
        return float(answer in text) * 2

    assert train(rewards=[has_digit]).folder != first.folder
    assert train(data=ROWS[:-1]).folder != first.folder


def test_a_named_run_refuses_another_function_and_again_trains_beside_it():
    train(name="mine")
    with pytest.raises(UserError, match=r"run 'mine' is finished and had another config.*path"):
        train(name="mine", rewards=[lambda text: 1.0 * len(text)])


def test_a_run_that_began_with_another_function_is_not_continued():
    with pytest.raises(KeyboardInterrupt):
        train(name="mine", on_event=stop_after(1))
    with pytest.raises(UserError, match=r"run 'mine' was started with another config.*again=True"):
        train(name="mine", rewards=[lambda text: 1.0 * len(text)])


def stop_after(steps: int) -> Any:
    """Interrupts as Ctrl-C does, after so many steps."""

    def see(event: object) -> None:
        if type(event).__name__ == "StepDone" and getattr(event, "step", 0) + 1 == steps:
            raise KeyboardInterrupt

    return see


def test_an_interrupted_call_is_continued_to_the_same_bits():
    whole = train(steps=3, runs="whole", checkpoint={"every": 1})
    with pytest.raises(KeyboardInterrupt, match="interrupted after 2 of 3 steps"):
        train(steps=3, runs="parts", checkpoint={"every": 1}, on_event=stop_after(2))
    assert burnish.load_runs("parts").status.tolist() == ["stopped"]
    parts = train(steps=3, runs="parts", checkpoint={"every": 1})
    one, other = (run.weights / "model.safetensors" for run in (whole, parts))
    assert one.read_bytes() == other.read_bytes()


def test_inside_a_running_loop_a_thread_trains_and_this_one_hears_of_it():
    threads: set[threading.Thread] = set()

    async def cell() -> burnish.Run:
        return train(on_event=lambda event: threads.add(threading.current_thread()))

    run = asyncio.run(cell())
    assert run.status == "finished"
    assert threads == {threading.main_thread()}
    assert not any(t.name == "burnish-train" for t in threading.enumerate())


def test_an_interrupt_inside_a_running_loop_closes_the_run():
    async def cell() -> burnish.Run:
        return train(steps=50, on_event=stop_after(1))

    with pytest.raises(KeyboardInterrupt, match=r"interrupted after \d+ of 50 steps"):
        asyncio.run(cell())
    assert burnish.load_runs().status.tolist() == ["stopped"]
    assert not any(t.name == "burnish-train" for t in threading.enumerate())


def test_async_callers_keep_their_loop_and_may_cancel():
    ticks = 0
    calls = {"data": ROWS, "rewards": [has_digit], "recipe": "grpo", **SMALL}

    async def beside() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    async def main() -> None:
        other = asyncio.create_task(beside())
        run = await burnish.train_async(steps=2, **calls)
        assert run.status == "finished"
        begun = asyncio.Event()
        task = asyncio.create_task(
            burnish.train_async(steps=90, on_event=lambda event: begun.set(), **calls)
        )
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        other.cancel()

    asyncio.run(main())
    assert ticks > 3
    assert sorted(burnish.load_runs().status) == ["finished", "stopped"]


def test_rewards_may_be_async_abstain_or_carry_evidence():
    async def explained(text: str) -> Reward:
        await asyncio.sleep(0)
        seen = Evidence("letters", f"{len(text)} letters")
        return Reward("explained", float(len(text)), evidence=(seen,))

    def sometimes(text: str) -> float | None:
        return None if not text else 1.0

    run = train(rewards=[explained, (sometimes, 0.0)])
    why = run.why("0/train/0")
    assert why.parts.keys() == {"explained", "sometimes"}
    assert "letters: " in repr(why)
    assert set(run.evidence().source) == {"letters"}


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        ("sft", [{"prompt": f"Say {n}.", "completion": str(n)} for n in range(9)]),
        ("sft", [{"messages": [{"role": "user", "content": f"Say {n}."},
                               {"role": "assistant", "content": str(n)}]} for n in range(9)]),
        ("dpo", [{"prompt": f"Say {n}.", "chosen": str(n), "rejected": "no"} for n in range(9)]),
        ("reward_model", [{"prompt": f"Say {n}.", "chosen": str(n), "rejected": "no"} for n in range(9)]),
        ("distil", ROWS),
    ],
)  # fmt: skip
def test_the_same_call_trains_by_other_kinds(kind, rows):
    run = burnish.train(
        data=rows, train={"kind": kind, "batch": 4}, steps=2, **{**SMALL, "rollout": {}}
    )
    assert run.status == "finished"
    assert run.config.train.__struct_config__.tag == kind
    assert run.name.startswith(kind)


def test_a_config_is_trained():
    config = burnish.Config.load("grpo", data=ROWS, rewards=[has_digit], steps=1, model="tiny")
    config = config.replace(rollout=SMALL["rollout"], evaluation={"prompts": 2})
    run = burnish.train(config, show=False)
    assert (run.status, run.steps) == ("finished", 1)
    assert run.config == config


def test_a_finished_run_is_told_and_given_back(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    first = burnish.train("tiny", "steps=1", evaluation={"prompts": 2})
    capsys.readouterr()
    again = burnish.train("tiny", "steps=1", evaluation={"prompts": 2})
    assert again.folder == first.folder
    assert "is finished already" in capsys.readouterr().out


def test_a_run_that_a_guard_stops_says_why_without_progress(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def broken(text: str) -> float:
        raise ZeroDivisionError("no such number")

    with pytest.warns(RuntimeWarning, match="stopped: "):
        run = burnish.train("tiny", "steps=3", rewards=[broken], show=False)
    assert run.status == "stopped"
    assert str(run.summary.result["reason"]) in repr(run)


@pytest.mark.parametrize("value", [None, 3])
def test_an_unknown_setting_is_refused_whatever_its_value(value):
    with pytest.raises(UserError, match="lerning_rate"):
        burnish.train("tiny", lerning_rate=value)


def test_a_kind_without_a_recipe_asks_for_one():
    with pytest.raises(UserError, match="name one"):
        burnish.train(data=[{"prompt": "a"}], train={"kind": "focal"})


def test_an_answer_by_number_is_one_that_was_trained_on():
    run = train()
    assert run.samples().split.iloc[-1] == "eval:held_out"
    trained = run.samples(split="train")
    assert run.why(-1).response == trained.response.iloc[-1]
    assert run.why(0).response == trained.response.iloc[0]
    assert run.why(trained["sample"].iloc[2]).response == trained.response.iloc[2]
    with pytest.raises(UserError, match=r"trained on; got number 9999\. Name another: train-"):
        run.why(9999)


def test_why_says_what_the_number_of_a_pair_is():
    rows = [{"prompt": f"Say {n}.", "chosen": str(n), "rejected": "no"} for n in range(9)]
    kind = {"kind": "dpo", "batch": 4}
    run = burnish.train(data=rows, train=kind, steps=2, **{**SMALL, "rollout": {}})
    said = repr(run.why("train-2-1-2"))
    assert "implicit " in said
    assert "the rejected answer's log-prob, less the reference model's, times beta 0.1" in said
    assert "margin chosen - rejected" in said


def test_why_of_a_run_without_rewards_says_what_it_measures():
    rows = [{"prompt": f"Say {n}.", "completion": str(n)} for n in range(9)]
    kind = {"kind": "sft", "batch": 4}
    run = burnish.train(data=rows, train=kind, steps=2, **{**SMALL, "rollout": {}})
    with pytest.raises(UserError, match=r"sft learns given answers.* the loss"):
        run.why(-1)
