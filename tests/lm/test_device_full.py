"""A full GPU is known by any of its errors, told in one line, and never guessed."""

import pytest
import torch

from burnish.lm import hardware as room
from burnish.lm.hardware import Held, device_full, held_text, is_device_full

GIB = 2**30
BLAS = "CUDA error: CUBLAS_STATUS_{} when calling `cublasGemmEx( handle, opa, opb, m, n, k)`"
FULL = [
    torch.OutOfMemoryError("no room"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has ..."),
    torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be ..."),
    RuntimeError("Triton Error [CUDA]: out of memory"),
    RuntimeError(BLAS.format("ALLOC_FAILED")),
]
OTHERS = [
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
    RuntimeError("out of memory"),
    ValueError("CUDA out of memory"),
    MemoryError(),
]


@pytest.fixture
def held(monkeypatch):
    """Puts a GPU with this much free memory in the place of the real one."""

    def put(free: int, idle: int = 0) -> None:
        found = Held("cuda:0", 80 * GIB, free, 3 * GIB, idle)
        monkeypatch.setattr(room, "measure", lambda: found)

    return put


@pytest.mark.parametrize("error", FULL, ids=str)
def test_every_name_of_a_full_device_is_known(error):
    assert is_device_full(error)
    assert is_device_full(ExceptionGroup("tasks", [ValueError(), ExceptionGroup("", [error])]))


@pytest.mark.parametrize("error", OTHERS, ids=repr)
def test_another_fault_is_not_put_down_to_memory(error, held):
    held(0)
    assert not is_device_full(error)
    assert device_full(error, "step 3", "Free the GPU.") is None
    assert device_full(ExceptionGroup("tasks", [error]), "step 3", "Free the GPU.") is None


@pytest.mark.parametrize("status", ["EXECUTION_FAILED", "NOT_INITIALIZED", "INTERNAL_ERROR"])
def test_a_library_without_a_workspace_is_believed_only_on_a_full_device(status, held):
    error = RuntimeError(BLAS.format(status))
    assert not is_device_full(error), "no GPU here that could be full"
    held(room.SPARE)
    assert not is_device_full(error)
    held(room.SPARE - 1)
    assert is_device_full(error)
    held(0, idle=room.SPARE)
    assert not is_device_full(error), "torch's own cache is no full device"
    held(1, idle=room.SPARE - 2)
    assert is_device_full(error)


def test_memory_that_torch_keeps_is_told_apart_from_memory_in_use(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (GIB // 4, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 70 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 50 * GIB)
    assert room.measure() == Held("cuda:1", 80 * GIB, GIB // 4, 70 * GIB, 20 * GIB)
    assert not is_device_full(RuntimeError(BLAS.format("EXECUTION_FAILED")))


def test_a_device_that_cannot_be_asked_makes_no_numbers(monkeypatch):
    def broken():
        raise RuntimeError("CUDA error: unknown error")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", broken)
    assert held_text() == ""
    line = str(device_full(FULL[2], "burnish judge", "Free the GPU."))
    assert line == "burnish judge ran out of GPU memory. Free the GPU."
