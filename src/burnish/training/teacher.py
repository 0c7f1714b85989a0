"""The model that a student is distilled from: its weights, its prefix, what it samples.

| `train.teacher`     | weights                                                          |
|---------------------|------------------------------------------------------------------|
| `start` or `frozen` | the model as the training begins                                 |
| `ema`               | decay * teacher + (1 - decay) * student after each step          |
| `student`           | the model as it is now                                           |
| a model's folder    | another model of the same vocabulary                             |

A policy stands at the beginning of everything a teacher reads. Its keys and values are computed
once for weights that stay, once a step for weights that move, and joined to every row's.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from burnish.errors import UserError
from burnish.lm.decoder import Decoder
from burnish.lm.folder import LoadedModel, check_causal, load_model
from burnish.lm.local import LocalLM
from burnish.lm.model_input import ModelInput
from burnish.lm.tokenizer import Tokenizer, odd_token
from burnish.training.forward import CausalModel
from burnish.training.packing import PackedBatch
from burnish.training.trainable import model_of

if TYPE_CHECKING:
    from burnish.config.schema import DistilTrain
    from burnish.training.algorithm import Setup

Keys = Sequence[tuple[Tensor, Tensor]]
"""Keys and values of each layer, (1, Hkv, P, Dh)."""


class Teacher:
    """Gives the teacher's module, follows the student where it is an average of it."""

    def __init__(self, setup: Setup, settings: DistilTrain) -> None:
        self.setup = setup
        self.settings = settings
        self.other = None if settings.is_self else _load_other(setup, settings)
        self.average: Average | None = None
        if settings.is_frozen:
            setup.trainable.freeze_reference()
        elif settings.teacher == "ema":
            self.average = Average(setup.trainable.module, settings.decay)
        self._prefixes: dict[tuple[int, ...], tuple[int, Keys]] = {}
        self._lms: dict[int, LocalLM] = {}

    @property
    def loaded(self) -> LoadedModel:
        return self.other or self.setup.trainable.loaded

    @property
    def tokenizer(self) -> Tokenizer:
        return self.loaded.tokenizer

    @contextmanager
    def model(self, student: Any) -> Iterator[Any]:
        """The module that teaches, while it may be used."""
        if self.other is not None:
            yield self.other.module
        elif self.average is not None:
            yield self.average.module
        elif self.settings.teacher == "student":
            yield student
        else:
            with self.setup.trainable.reference() as frozen:
                yield frozen

    @contextmanager
    def lm(self) -> Iterator[LocalLM]:
        """The teacher as a sampler."""
        own = self.setup.trainable.module
        with self.model(own) as module:
            if module is own:
                yield self.setup.local
                return
            if id(module) not in self._lms:
                loaded = dataclasses.replace(self.loaded, module=module)
                self._lms[id(module)] = LocalLM(loaded)
            yield self._lms[id(module)]

    def follow(self) -> None:
        """After a step of the student."""
        if self.average is not None:
            self.average.follow(self.setup.trainable.module)

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps: the average in full precision."""
        return {} if self.average is None else {f"ema.{k}": v for k, v in self.average.wide.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        if self.average is not None:
            self.average.load({k.removeprefix("ema."): v for k, v in tensors.items()})

    # --- the prefix

    def can_reuse(self, module: Any) -> bool:
        """Whether rows can be computed behind keys that are known: not with sliding windows."""
        return isinstance(module, Decoder) and module.architecture.sliding_window is None

    def hidden(self, module: CausalModel, packed: PackedBatch, prefix: tuple[int, ...]) -> Tensor:
        """The state that predicts each trained token of rows behind a prefix, (N, D)."""
        if not prefix:
            hidden_RSD = module(packed.inputs)
        else:
            assert isinstance(module, Decoder)
            hidden_RSD = behind_prefix(module, packed, self._keys(module, prefix))
        return hidden_RSD.flatten(0, 1).index_select(0, packed.source_N)

    def _keys(self, module: Decoder, prefix: tuple[int, ...]) -> Keys:
        is_fixed = self.other is not None or self.settings.is_frozen
        version = 0 if is_fixed else self.setup.weight_version
        known = self._prefixes.get(prefix)
        if known is None or known[0] != version:
            known = self._prefixes[prefix] = (version, prefix_keys(module, prefix))
        return known[1]


class Average:
    """A copy of a model whose weights are the exponential average of the model's.

    Kept in at least float32: a step moves a weight by less than bfloat16 can tell apart. With
    adapters, their factors are averaged.
    """

    def __init__(self, module: Any, decay: float) -> None:
        self.decay = decay
        self.names = [name for name, p in module.named_parameters() if p.requires_grad]
        self.module = copy.deepcopy(module)
        self.module.requires_grad_(False)
        own = dict(self.module.named_parameters())
        self.wide = {
            name: own[name].detach().to(torch.promote_types(own[name].dtype, torch.float32)).clone()
            for name in self.names
        }

    @torch.no_grad()
    def follow(self, student: Any) -> None:
        """decay * teacher + (1 - decay) * student, as `policy.ema`; buffers are copied."""
        theirs = dict(student.named_parameters())
        for name, wide in self.wide.items():
            wide.mul_(self.decay).add_((1 - self.decay) * theirs[name].to(wide))
        buffers = dict(student.named_buffers())
        for name, buffer in self.module.named_buffers():
            buffer.copy_(buffers[name])
        self._write()

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from a checkpoint's average."""
        for name, wide in self.wide.items():
            wide.copy_(tensors[name])
        self._write()

    @torch.no_grad()
    def _write(self) -> None:
        own = dict(self.module.named_parameters())
        for name, wide in self.wide.items():
            own[name].copy_(wide)


def _load_other(setup: Setup, settings: DistilTrain) -> LoadedModel:
    """Another model as the teacher."""
    own = setup.trainable.loaded
    teacher = load_model(model_of(settings.teacher), dtype=own.dtype, device=own.device)
    check_causal(teacher, "train.teacher")
    teacher.module.requires_grad_(False)
    odd = odd_token(own.tokenizer, teacher.tokenizer)
    if odd is not None:
        there, here = (one.backend.token_to_id(odd) for one in (teacher.tokenizer, own.tokenizer))
        raise UserError(
            f"train.teacher = '{settings.teacher}' has another vocabulary than '{own.name}': token "
            f"{odd!r} is {there} there and {here} here. Distributions over "
            "different tokens cannot be compared; take a teacher of the same family."
        )
    return teacher


@torch.no_grad()
def prefix_keys(module: Decoder, prefix: Sequence[int]) -> Keys:
    """The keys and values of tokens that every row begins with."""
    found: dict[int, tuple[Tensor, Tensor]] = {}

    def keep(index: int, key: Tensor, value: Tensor) -> None:
        found[index] = (key.clone(), value.clone())

    ids_1P = torch.tensor([list(prefix)], device=module.head_weight.device)
    positions_1P = torch.arange(len(prefix), device=ids_1P.device).unsqueeze(0)
    module(ModelInput(ids_1P, positions_1P), keep)
    return [found[index] for index in range(len(found))]


@torch.no_grad()
def behind_prefix(module: Decoder, packed: PackedBatch, keys: Keys) -> Tensor:
    """Final hidden states of rows that continue a prefix, (R, S, D)."""
    rows, size = packed.ids_RS.shape
    length = keys[0][0].shape[2]
    own_RSS = packed.mask_RSS
    if own_RSS is None:
        causal_SS = torch.ones(size, size, dtype=torch.bool, device=packed.ids_RS.device).tril()
        own_RSS = causal_SS.expand(rows, size, size)
    mask_RSK = torch.cat([own_RSS.new_ones(rows, size, length), own_RSS], dim=-1)

    def join(index: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        before = (part.expand(rows, *part.shape[1:]) for part in keys[index])
        first_key, first_value = before
        return torch.cat([first_key, key], dim=2), torch.cat([first_value, value], dim=2)

    hidden: Tensor = module(ModelInput(packed.ids_RS, packed.positions_RS + length, mask_RSK), join)
    return hidden
