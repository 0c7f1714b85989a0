import os
import signal
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch
from training_cases import HERE, finish, outcome, resolved, trainer

from burnish.errors import UserError
from burnish.store import RunStore
from burnish.training import build
from burnish.user_code import calling_user_code, restored

SETTINGS = {"steps": 2, "evaluation": {"prompts": 0}}


def bad(function):
    path = f"{HERE / 'misbehaving_rewards.py'}:{function}"
    return {"rewards": [{"kind": "function", "path": path, "deadline_s": 20.0}]}


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("raises_base", "Own: mine (misbehaving_rewards.py:"),
        ("raises_interrupt", "KeyboardInterrupt (misbehaving_rewards.py:"),
        ("raises_exit", "SystemExit: 0 (misbehaving_rewards.py:"),
        ("raises_generator_exit", "GeneratorExit (misbehaving_rewards.py:"),
        ("raises_unreadable", "Unreadable: (its text cannot be read"),
        ("raises_interrupting", "Interrupting: (its text cannot be read"),
        ("raises_much", "ValueError: xxxx"),
        ("ends_the_process", "ExitRefused: os._exit(0) was called, which would end the whole run"),
        ("raises_base_async", "Own: mine (misbehaving_rewards.py:"),
        ("raises_interrupt_async", "KeyboardInterrupt (misbehaving_rewards.py:"),
        ("raises_cancelled_async", "CancelledError (misbehaving_rewards.py:"),
        ("ends_the_process_async", "ExitRefused: os._exit(0) was called"),
    ],
)
def test_whatever_a_reward_raises_is_told_at_once_with_its_status(tmp_path, function, reason):
    trained = trainer(tmp_path, SETTINGS, bad(function))
    began = time.monotonic()
    last = finish(trained)[-1]
    assert time.monotonic() - began < 15, "it was taken for a function that does not return"
    assert last.status == "stopped"
    assert f"(most: reward_error, part '{function}' has no value: {reason}" in last.reason
    assert len(last.reason) < 500
    with RunStore.open(trained.folder, read_only=True) as store:
        assert {s.reward.status.value for s in store.samples(step=0)} == {"reward_error"}


CHANGES = {
    "folder": "the working folder (to ",
    "removed_folder": "the working folder (to nothing)",
    "dtype": "torch's default dtype (to torch.float64)",
    "dtype_and_modes": "torch's default dtype (to torch.float16)",
    "output": "sys.stdout (closed or replaced)",
    "recursion": "the recursion limit (to ",
    "environment": "the environment (to ",
    "import_paths": "the import paths (to [])",
    "packages": "imported packages (to ",
    "warning_errors": "which warnings are errors (to ",
    "mask": "the mask of new files (to 0o777)",
    "limits": "the limits of the process (to ",
    "handlers": "signal handlers (to ",
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What the run leaves whose reward changes nothing."""
    folder = tmp_path_factory.mktemp("whole")
    finish(trainer(folder, SETTINGS, bad("letters")))
    return outcome(folder / "run")


def state_of_the_process():
    return {
        "folder": os.getcwd(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "threads": torch.get_num_threads(),
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "anomaly": torch.is_anomaly_enabled(),
        "stdout": sys.stdout,
        "recursion": sys.getrecursionlimit(),
        "path": os.environ.get("PATH"),
        "imports": sorted(sys.path),
        "warnings": [rule for rule in warnings.filters if rule[0] == "error"],
        "term": signal.getsignal(signal.SIGTERM),
    }


@pytest.mark.parametrize(("function", "what"), CHANGES.items())
def test_what_a_reward_changes_is_set_back_and_told_once(
    tmp_path, whole, monkeypatch, caplog, function, what
):
    monkeypatch.chdir(tmp_path)
    trained = build(resolved(tmp_path, SETTINGS, bad(function)), Path("runs/run"), root=tmp_path)
    before = state_of_the_process()
    try:
        last = finish(trained)[-1]
        assert state_of_the_process() == before
    finally:
        os.environ.pop("BURNISH_TEST_ADDED", None)
    assert last.status == "finished"
    with RunStore.open(tmp_path / "runs" / "run", read_only=True) as store:
        told = [e.message for e in store.events("user_code")]
    assert len([line for line in told if what in line]) == 1
    assert all(line.startswith(f"reward '{function}' changed ") for line in told)
    assert len([record for record in caplog.records if what in record.getMessage()]) == 1
    found = outcome(tmp_path / "runs" / "run")
    same = ("weights", "optimiser", "state", "checkpoint")
    assert {key: found[key] for key in same} == {key: whole[key] for key in same}


def test_a_forked_copy_of_the_run_ends_with_the_call(tmp_path, whole):
    trained = trainer(tmp_path, SETTINGS, bad("forks"))
    assert finish(trained)[-1].status == "finished"
    assert outcome(tmp_path / "run")["weights"] == whole["weights"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("import os\nos._exit(0)", "ExitRefused: os._exit(0) was called"),
        ("class B(BaseException): pass\nraise B('mine')", "B: mine"),
        ("def f(n): return f(n + 1)\nf(0)", "RecursionError: maximum recursion depth exceeded"),
    ],
)
def test_a_module_that_ends_as_it_is_imported_is_one_line(tmp_path, text, said):
    (tmp_path / "own.py").write_text(f"{text}\n")
    own = {"rewards": [{"kind": "function", "path": f"{tmp_path / 'own.py'}:own"}]}
    with pytest.raises(UserError) as caught:
        trainer(tmp_path, SETTINGS, own)
    assert f"cannot be imported: {said}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_module_that_sets_the_default_dtype_does_not_change_the_run(tmp_path, whole, caplog):
    (tmp_path / "own.py").write_text(
        "import torch\ntorch.set_default_dtype(torch.float64)\n"
        "def letters(text):\n    return sum(c.isalpha() for c in text) / max(len(text), 1)\n"
    )
    own = {"rewards": [{"kind": "function", "path": f"{tmp_path / 'own.py'}:letters"}]}
    assert finish(trainer(tmp_path, SETTINGS, own))[-1].status == "finished"
    assert outcome(tmp_path / "run")["weights"] == whole["weights"]
    assert "a module of this run changed torch's default dtype (to torch.float64)" in caplog.text


@pytest.mark.parametrize("way", ["os._exit(0)", "raise SystemExit(0)", "raise GeneratorExit"])
@pytest.mark.parametrize("slot", ["advantage", "auxiliary", "task"])
def test_pieces_and_tasks_of_ones_own_cannot_end_the_run_silently(tmp_path, slot, way):
    names = {"advantage": "rewards_BK, groups_B, weights_K", "auxiliary": "batch", "task": "rng"}
    (tmp_path / "own.py").write_text(f"import os\ndef own({names[slot]}):\n    {way}\n")
    piece = {"kind": "function", "path": f"{tmp_path / 'own.py'}:own"}
    table = {"task": piece} if slot == "task" else {"policy": {slot: piece}}
    if slot == "auxiliary":
        table = {"policy": {"auxiliary": [piece]}}
    with pytest.raises(UserError) as caught:
        finish(trainer(tmp_path, SETTINGS, table))
    assert "own.py:own" in str(caught.value)


@pytest.mark.parametrize("slot", ["advantage", "auxiliary", "task"])
def test_what_pieces_and_tasks_of_ones_own_change_is_set_back(tmp_path, slot, caplog):
    bodies = {
        "advantage": "own(rewards_BK, groups_B, weights_K):\n    {set}\n"
        "    return rewards_BK[:, 0] - rewards_BK.mean(), rewards_BK",
        "auxiliary": "own(batch):\n    {set}\n    return batch.logp_BT * 0",
        "task": "own(rng):\n    {set}\n    return {{'prompt': f'item {{rng.random()}}?', 'row': 1}}",
    }
    change = "torch.set_default_dtype(torch.float64); os.chdir('/')"
    text = bodies[slot].format(set=change)
    (tmp_path / "own.py").write_text(f"import os, torch\ndef {text}\n")
    piece = {"kind": "function", "path": f"{tmp_path / 'own.py'}:own"}
    table = {"task": piece} if slot == "task" else {"policy": {slot: piece}}
    if slot == "auxiliary":
        table = {"policy": {"auxiliary": [piece]}}
    before = state_of_the_process()
    assert finish(trainer(tmp_path, SETTINGS, table))[-1].status == "finished"
    assert state_of_the_process() == before
    assert "torch's default dtype (to torch.float64)" in caplog.text


def test_outside_of_a_call_the_process_can_be_ended():
    with calling_user_code():
        pass
    child = os.fork()
    if child == 0:
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    with calling_user_code():
        child = os.fork()
        if child == 0:
            os._exit(8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 8


def test_a_closed_descriptor_of_the_output_is_opened_again(capfd):
    stream = os.fdopen(os.dup(1), "w")
    whole, sys.stdout = sys.stdout, stream
    try:
        told = []
        with restored(told.append):
            stream.close()
        assert told == ["sys.stdout (closed or replaced)"]
        sys.stdout.write("still here\n")
        sys.stdout.flush()
    finally:
        sys.stdout = whole
    assert "still here" in capfd.readouterr().out
