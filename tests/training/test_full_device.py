import pytest
import torch
from method_cases import METHODS
from training_cases import finish, trainer

from burnish.errors import UserError
from burnish.lm.hardware import DeviceFull
from burnish.store import RunStatus, RunStore
from burnish.training.algorithms import sft
from burnish.training.update import MicroBatcher

SETTINGS = {"steps": 3, "evaluation": {"prompts": 0}, "checkpoint": {"every": 1}}
ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ..."),
    torch.AcceleratorError("CUDA error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
]


def raising(error):
    def failing(*arguments, **more):
        raise error

    return failing


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_sampling_without_memory_is_a_line_and_the_run_goes_on_after_it(tmp_path, error):
    trained = trainer(tmp_path, SETTINGS)
    events = trained.run()
    while trained.state.step < 1:
        next(events)
    next(events)  # its checkpoint
    trained.lm.sample_batch = raising(error)
    with pytest.raises(DeviceFull) as caught:
        list(events)
    trained.store.close()
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith("step 2 ran out of GPU memory")
    assert "rollout.prompts" in line
    assert caught.value.__cause__ is error
    with RunStore.open(trained.folder, read_only=True) as store:
        assert store.status() is RunStatus.STOPPED
        assert store.summary().result["reason"] == line
        assert [(e.step, e.message) for e in store.events("device")] == [(1, line)]
        assert store.steps() == [0]
    assert (trained.folder / "checkpoints" / "step-000001").is_dir()
    again = trainer(tmp_path, SETTINGS)
    assert again.state.step == 1
    finish(again)
    whole = trainer(tmp_path, SETTINGS, run="whole")
    finish(whole)
    pairs = zip(again.optimiser.parameters, whole.optimiser.parameters, strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


WARM = {k: v for k, v in METHODS["afrl"].items() if k != "curriculum"}
STAGES = [
    (SETTINGS, "step 1"),
    ({**SETTINGS, "evaluation": {"prompts": 2}}, "the evaluation before training"),
    (METHODS["medalign"], "calibration"),
    (METHODS["curriculum"], "measuring the curriculum"),
]


def stopped(trained):
    with pytest.raises(DeviceFull) as caught:
        finish(trained)
    with RunStore.open(trained.folder, read_only=True) as store:
        assert store.summary().result["reason"] == str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("settings", "what"), STAGES, ids=lambda value: str(value)[:24])
def test_the_line_names_what_was_under_way(tmp_path, settings, what):
    trained = trainer(tmp_path, settings)
    trained.lm.sample_batch = raising(ERRORS[1])
    assert stopped(trained).startswith(f"{what} ran out of GPU memory")


def test_a_full_device_in_the_warm_start_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(sft.SftAlgorithm, "batch", raising(ERRORS[1]))
    line = stopped(trainer(tmp_path, WARM))
    assert line.startswith("step 1 of warm_start ran out of GPU memory")
    assert "stages.0.train.batch=" in line, "the stage's own setting"


class NoModel(torch.nn.Module):
    """A micro-batcher only asks a model for its tokens, and here that is given."""


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_passes_get_smaller_after_any_error_of_memory(error):
    passes = MicroBatcher(NoModel(), torch.device("cpu"), tokens=1024)
    budgets = []

    def work():
        budgets.append(passes.tokens)
        if len(budgets) < 3:
            raise error
        return "done"

    assert passes.within_memory(work) == "done"
    assert budgets == [1024, 512, 256]
    with pytest.raises(UserError, match="with micro-batches of 256 tokens; what saves most"):
        passes.within_memory(raising(error))


def test_an_error_that_is_not_of_memory_goes_on_as_it_is(tmp_path):
    trained = trainer(tmp_path, SETTINGS)
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    trained.lm.sample_batch = raising(error)
    with pytest.raises(RuntimeError) as caught:
        finish(trained)
    assert caught.value is error
