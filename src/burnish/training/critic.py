"""A critic of its own (`policy.critic = "separate"`): a second model with a value head, and its AdamW.

It begins as a copy of the policy, or as the model of a folder such as a reward model, whose head it
takes over. It is trained in passes of its own: its gradient never reaches the policy, and the
activations of the two models are never held at the same time.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from burnish.config.schema import Optimiser
from burnish.lm.folder import LoadedModel, load_model, save_model
from burnish.lm.scalar_head import SCORE, ScalarHead, freeze_language_head
from burnish.lm.tokenizer import Tokenizer
from burnish.policy.ppo import SeparateCritic
from burnish.policy.state import with_prefix
from burnish.records import Trajectory
from burnish.training.algorithm import Setup
from burnish.training.devices import World
from burnish.training.guards import check_tensors, trip
from burnish.training.optimiser import MasterAdamW, learning_rate
from burnish.training.packing import PackedBatch, scatter
from burnish.training.teacher import check_vocabulary
from burnish.training.update import MicroBatcher
from burnish.training.validate import find_critic

STATE = "critic/"
"""Before the names of its tensors in the state of an algorithm."""
HINT = "Lower policy.critic.learning_rate or set optimiser.clip_norm."
"""Where a gradient or a weight of the critic is not finite."""


class CriticModel:
    def __init__(self, loaded: LoadedModel, settings: Optimiser, steps: int) -> None:
        """`settings` are those of its own AdamW; `steps` of the whole training."""
        if loaded.score_head is None:
            loaded.score_head = zero_head(loaded)
        self.loaded, self.head = loaded, loaded.score_head
        self.settings, self.steps = settings, steps
        loaded.module.requires_grad_(True)
        self.head.requires_grad_(True)
        freeze_language_head(loaded.module)
        named = [*loaded.module.named_parameters(), (SCORE, self.head.weight)]
        self.optimiser = MasterAdamW(named, settings)
        self._norms: list[float] = []
        self._rate = 0.0

    @classmethod
    def open(cls, setup: Setup, settings: SeparateCritic) -> CriticModel:
        rate = settings.learning_rate
        chosen = msgspec.structs.replace(setup.config.optimiser, learning_rate=rate)
        return cls(_start(setup, settings.path), chosen, setup.steps)

    @property
    def parameters(self) -> int:
        return sum(one.numel() for one in self.optimiser.parameters)

    def batches(self, like: MicroBatcher) -> MicroBatcher:
        module, device = self.loaded.module, self.loaded.device
        return MicroBatcher(module, device, like.world, like.share_prompts, like.tokens)

    def values(self, packed: PackedBatch) -> Tensor:
        hidden_RSD = self.loaded.module(packed.inputs)
        hidden_ND = hidden_RSD.flatten(0, 1).index_select(0, packed.source_N)
        return scatter(self.head(hidden_ND), packed)

    def step(self, step: int, world: World, ids: Sequence[str]) -> None:
        """One optimiser step with the gradients of all processes; trips where one is not finite."""
        world.add(self.optimiser.sums)
        norm = self.optimiser.gradient_norm()
        read = float(norm)
        if not math.isfinite(read):
            check_tensors("gradient", self._named(self.optimiser.sums), ids, step, HINT)
            trip("gradient", "gradient norm of the critic", step, tuple(ids), read, HINT)
        self._rate = learning_rate(self.settings, step, self.steps)
        self.optimiser.step(self._rate, norm)
        self._norms.append(read)

    def finish(self, step: int) -> dict[str, float]:
        """Metrics of a step's updates; trips where they have left a weight that is not finite."""
        norms, self._norms = self._norms, []
        if not norms:
            return {}
        if not math.isfinite(float(self.optimiser.weight_norm)):
            check_tensors("weight", self._named(self.optimiser.masters), (), step, HINT)
        mean = sum(norms) / len(norms)
        return {"critic/gradient_norm": mean, "critic/learning_rate": self._rate}

    def _named(self, tensors: Sequence[Tensor]) -> list[tuple[str, Tensor]]:
        names = [STATE + name for name in self.optimiser.names]
        return list(zip(names, tensors, strict=True))

    def state(self) -> dict[str, Tensor]:
        return {STATE + name: tensor for name, tensor in self.optimiser.state().items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.optimiser.load(with_prefix(tensors, STATE))

    def write(self, folder: Path) -> None:
        save_model(self.loaded, folder)


def zero_head(loaded: LoadedModel) -> ScalarHead:
    return ScalarHead(torch.zeros_like(loaded.module.head_weight[:1]))


def _start(setup: Setup, path: str) -> LoadedModel:
    own = setup.trainable.loaded
    if path:
        folder = find_critic(path)
        what = f"policy.critic.path = '{path}'"
        check_vocabulary(
            own, Tokenizer.from_folder(folder), what, "A critic reads the policy's tokens"
        )
        return load_model(folder, dtype=own.dtype, device=own.device)
    if setup.trainable.lora is not None:
        # The policy's own module has adapters; the critic is trained whole, from their sum.
        whole = load_model(own.folder, dtype=own.dtype, device=own.device)
        merged = setup.trainable.weights()
        with torch.no_grad():
            for name, weight in whole.module.weights_to_save().items():
                weight.copy_(merged[name])
        return whole
    return LoadedModel(
        copy.deepcopy(own.module), own.tokenizer, own.config, own.folder, name=own.name
    )


def token_tables(
    batches: MicroBatcher,
    trajectories: Sequence[Trajectory],
    tokens: int,
    of: Callable[[PackedBatch], Sequence[Tensor]],
) -> dict[int, Tensor]:
    """Numbers of each trained token in this process's share, (X, T) a rollout, float64 on the CPU.

    `of` gives X tensors (B, T) of one pass of about `tokens` tokens.
    """
    found: dict[int, Tensor] = {}
    for packed in batches.split(trajectories, tokens=tokens):
        read_XBT = torch.stack([one.double() for one in of(packed)]).cpu()
        for row, i in enumerate(packed.members):
            found[i] = read_XBT[:, row, : trajectories[i].trained_tokens]
    return found


def padded(rows: Mapping[int, Tensor], place: int) -> Tensor:
    """One of the numbers of all rollouts as a table, (B, T); 0 behind the last token."""
    width = max([1, *(row.shape[1] for row in rows.values())])
    table_BT = torch.zeros(len(rows), width, dtype=torch.float64)
    for i, row_XT in rows.items():
        table_BT[i, : row_XT.shape[1]] = row_XT[place]
    return table_BT
