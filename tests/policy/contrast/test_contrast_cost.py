import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from burnish.policy.contrast.losses import ContrastRule, contrast, contrastive_losses

ROLLOUTS, GROUP, WIDTH = 8192, 16, 64


class LargestTensor(TorchDispatchMode):
    """Remembers the most elements that any operation gave, and how many operations there were."""

    elements = 0
    operations = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operations += 1
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, torch.Tensor):
                self.elements = max(self.elements, value.numel())
        return result


def big_batch(rollouts):
    draw = torch.Generator().manual_seed(0)
    embeddings = torch.randn(rollouts, WIDTH, generator=draw)
    labels = torch.rand(rollouts, generator=draw) < 0.5
    return embeddings, labels, torch.arange(rollouts) // GROUP


def watched_losses(rollouts):
    embeddings, labels, groups = big_batch(rollouts)
    embeddings.requires_grad_(True)
    with LargestTensor() as seen:
        result = contrastive_losses(embeddings, labels, groups)
        result.mean.backward()
    return result, seen


def test_groups_of_a_large_batch_are_never_compared_with_each_other():
    result, seen = watched_losses(ROLLOUTS)
    assert result.anchors.sum() > 0.4 * ROLLOUTS
    # The embeddings themselves are the largest; all pairs would be 67 million.
    assert seen.elements == ROLLOUTS * WIDTH
    # Nothing is done group by group: eight times the groups need no operation more.
    assert seen.operations == watched_losses(ROLLOUTS // 8)[1].operations


def test_one_odd_group_does_not_pad_the_others():
    embeddings, labels, _ = big_batch(ROLLOUTS)
    groups = torch.arange(ROLLOUTS).clamp(min=1000)  # one of 1001 rollouts, 7191 of one
    groups[1001:] = torch.arange(ROLLOUTS - 1001) // 4 + 5000
    with LargestTensor() as seen:
        contrastive_losses(embeddings, labels, groups)
    assert seen.elements <= 1001**2


@pytest.mark.parametrize("scope", ["cross", "batch"])
def test_the_whole_batch_is_compared_in_blocks_that_do_not_stay(scope):
    rollouts, limit = 1024, 1 << 16
    embeddings, labels, groups = big_batch(rollouts)
    embeddings.requires_grad_(True)
    kept = []

    def keep(tensor):
        kept.append(tensor.numel())
        return tensor

    rule = ContrastRule("supcon_out", scope=scope)
    with LargestTensor() as seen:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            found = contrast(embeddings, labels, groups, rule, block_pairs=limit)
        found.losses.mean.backward()
    assert seen.elements <= limit
    # Kept as they are, the tables of half the rollouts would be several times this.
    assert sum(kept) < rollouts**2 / 2
    assert embeddings.grad.count_nonzero() > 0
