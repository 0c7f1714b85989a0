"""The part of a GPU's memory that one of several programs takes."""

import pytest
import torch

from burnish.lm.hardware import GPU_SHARE, available_bytes, gpu_share, within_share


def test_a_program_counts_on_what_its_share_leaves_beside_what_it_uses():
    assert within_share(free=100, total=160, used=10, share=1.0) == 100
    assert within_share(free=100, total=160, used=10, share=0.25) == 30
    assert within_share(free=20, total=160, used=10, share=0.25) == 20
    assert within_share(free=100, total=160, used=50, share=0.25) == 0


def test_without_a_share_the_whole_card_is_one_programs(monkeypatch):
    monkeypatch.delenv(GPU_SHARE, raising=False)
    assert gpu_share() == 1.0
    monkeypatch.setenv(GPU_SHARE, "0.25")
    assert gpu_share() == 0.25


@pytest.mark.parametrize(("name", "index"), [("cuda", None), ("cuda:1", 1)])
def test_the_share_is_a_limit_for_torch_too(monkeypatch, name, index):
    """torch takes a number or None there: a device without one, such as `cuda`, is refused."""
    limits = []
    monkeypatch.setenv(GPU_SHARE, "0.25")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100, 160))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 12)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 10)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda *given: limits.append(given)
    )
    assert available_bytes(torch.device(name)) == 30
    assert limits == [(0.25, index)]
