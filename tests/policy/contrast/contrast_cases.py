"""Batches, and the losses as their definitions read: loops over single pairs in plain floats."""

import math

import torch
from torch import Tensor

LOSSES = ("infonce", "supcon_out", "soft_nn", "supcon_in")


def batch(sizes: list[int], width: int = 6, seed: int = 0) -> tuple[Tensor, Tensor, list[int]]:
    """Embeddings (float64), labels and groups; the rollouts of all groups are shuffled together."""
    draw = torch.Generator().manual_seed(seed)
    groups = [number for number, size in enumerate(sizes) for _ in range(size)]
    order = torch.randperm(len(groups), generator=draw).tolist()
    embeddings = torch.randn(len(groups), width, generator=draw, dtype=torch.float64)
    labels = torch.rand(len(groups), generator=draw) < 0.6
    return embeddings, labels, [groups[i] for i in order]


def log_sum_exp(values: list[float]) -> float:
    return math.log(math.fsum(math.exp(value) for value in values))


def by_definition(
    embeddings: Tensor,
    labels: Tensor,
    groups: list[int],
    loss: str,
    temperature: float,
    scope: str = "group",
    anchors: str = "correct_only",
    skip_trivial: bool = True,
    similarity: str = "cosine",
    duplicate_ids: list | None = None,
    dedup_cos: float = math.inf,
) -> list[list[float]]:
    """For each rollout the values its loss may take: one, or one a positive for `infonce`.

    Rollouts that are no anchors have an empty list.
    """
    units = (embeddings / embeddings.norm(dim=1, keepdim=True)).tolist()
    right = labels.tolist()

    def cos(i: int, j: int) -> float:
        return math.fsum(a * b for a, b in zip(units[i], units[j], strict=True))

    def score(i: int, j: int) -> float:
        shapes = {
            "cosine": lambda c: c,
            "negative_cosine": lambda c: -c,
            "distance": lambda c: 1 - math.sqrt(max(2 - 2 * c, 0)),
        }
        return shapes[similarity](cos(i, j)) / temperature

    found = []
    for i in range(len(groups)):
        everyone = [
            j
            for j in range(len(groups))
            if j != i
            and (scope != "group" or groups[i] == groups[j])
            and not (duplicate_ids and duplicate_ids[i] == duplicate_ids[j])
            and cos(i, j) <= dedup_cos
        ]
        positives = [
            j
            for j in everyone
            if right[i] == right[j] and (scope == "batch" or groups[i] == groups[j])
        ]
        is_trivial = len(everyone) == len(positives)
        if not positives or (skip_trivial and is_trivial):
            found.append([])
            continue
        if anchors == "correct_only" and not right[i]:
            found.append([])
            continue
        total = log_sum_exp([score(i, j) for j in everyone])
        chosen = [score(i, j) for j in positives]
        found.append(
            {
                "infonce": [total - value for value in chosen],
                "supcon_out": [total - math.fsum(chosen) / len(chosen)],
                "soft_nn": [total - log_sum_exp(chosen)],
                "supcon_in": [total - log_sum_exp(chosen) + math.log(len(chosen))],
            }[loss]
        )
    return found
