"""Inside of vLLM: a weight transfer engine that takes the trainer's weights from a process group.

vLLM finds it by the entry point `vllm.general_plugins` of the installed package:

    VLLM_SERVER_DEV_MODE=1 vllm serve FOLDER --weight-transfer-config '{"backend": "burnish"}'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.distributed.weight_transfer.base import WeightTransferEngine
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

from burnish.engines.weight_group import Place, WeightGroup

BACKEND = "burnish"


def register() -> None:
    """The plugin's entry point."""
    WeightTransferEngineFactory.register_engine(BACKEND, GroupWeights)


@dataclass
class Meeting:
    """The group that a worker is to join."""

    place: list[Any]


@dataclass
class Sent:
    """What comes next, tensor by tensor."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]


class GroupWeights(WeightTransferEngine):
    """A worker's end of the trainer's group."""

    init_info_cls = Meeting
    update_info_cls = Sent
    group: WeightGroup | None = None

    def init_transfer_engine(self, init_info: Meeting) -> None:
        """Join the trainer; a group of an earlier trainer is let go."""
        own = self.parallel_config
        rank = 1 + own.data_parallel_index * own.world_size + own.rank
        self.group = WeightGroup.join(Place(*init_info.place), rank, self.device)

    def start_weight_update(self) -> None:
        """Weights come in the checkpoint's form, as when the server started."""
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: Sent) -> None:
        """Load each tensor as it arrives."""
        if self.group is None:
            raise RuntimeError(
                "no trainer has joined this worker; POST /init_weight_transfer_engine"
            )
        sent = zip(update_info.names, update_info.dtypes, update_info.shapes, strict=True)
        for name, dtype, shape in sent:
            self.model.load_weights([(name, self.group.receive(dtype, shape))])

    def finish_weight_update(self) -> None:
        """Bring what was loaded into the form that the kernels read.

        A head that is tied to the embedding loads nothing of its own, so vLLM leaves the packed copy
        that it made of the first weights.
        """
        finalize_layerwise_reload(self.model, self.model_config)
        if not self.model_config.hf_text_config.tie_word_embeddings:
            return
        for layer in self.model.modules():
            if isinstance(layer, ParallelLMHead):
                layer.quant_method.process_weights_after_loading(layer)

    def shutdown(self) -> None:
        """Let go of the group."""
        self.group = None
