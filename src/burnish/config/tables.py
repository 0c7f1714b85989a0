"""The tables of a config that every kind of training shares: run, model, sampler, optimiser and so on."""

from __future__ import annotations

import itertools
import re
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct

from burnish.errors import ArgumentError
from burnish.lm.new_model import NewModel
from burnish.tasks.config import TaskConfig

Positive = Annotated[int, Meta(ge=1, le=1_000_000_000)]
RowCount = Annotated[int, Meta(ge=1, le=100_000)]
Count = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Amount = Annotated[float, Meta(ge=0.0, le=1e9)]
Seconds = Annotated[float, Meta(gt=0.0, le=1e6)]

_NOT_IN_A_NAME = re.compile(r"[/\\\x00-\x1f\x7f]")


def short(text: str) -> str:
    """A text as a message quotes it."""
    return repr(text) if len(text) <= 60 else f"{text[:40]!r}... ({len(text)} characters)"


class Section(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every table of the config."""


class Run(Section, frozen=True):
    """Run folder, name and seed."""

    name: str = ""
    """Folder name; empty takes the recipe's name and the config's hash."""
    folder: str = "runs"
    """Folder that holds runs."""
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    """Seed from which all others of the run are derived."""

    def __post_init__(self) -> None:
        is_folder_name = not _NOT_IN_A_NAME.search(self.name) and self.name not in (".", "..")
        if not is_folder_name or self.name != self.name.strip() or len(self.name.encode()) > 200:
            raise ArgumentError(
                f"name: got {short(self.name)}, expected the name of one folder: at most 200 "
                "bytes, without slashes and control characters. run.folder says where it lies"
            )
        if "\0" in self.folder or len(self.folder.encode()) > 3000:
            raise ArgumentError(f"folder: got {short(self.folder)}, expected the path of a folder")


class Lora(Section, frozen=True):
    """Low-rank adapters (needs the `lora` extra)."""

    rank: Positive = 16
    """Rank of the adapters."""
    alpha: Amount = 32.0
    """The adapters' output is multiplied by `alpha / rank`."""
    targets: tuple[str, ...] = (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    )
    """Names of the linear layers that get an adapter."""


class Model(Section, frozen=True):
    """What is trained."""

    WORD: ClassVar[str] = "path"
    """The key that `model=tiny` sets."""

    path: Annotated[str, Meta(min_length=1)] = "smollm2"
    """`smollm2` (embedded), `tiny` (random, for trials), `new` (random, of the sizes of `model.new`)
    or a local Hugging Face folder."""
    dtype: Literal["auto", "bfloat16", "float32", "float64"] = "auto"
    """auto: bfloat16 over float32 master weights where the hardware is fast at it (GPUs, CPUs with
    AMX) and the model is not tiny; else float32."""
    device: str = "auto"
    """`auto` (a GPU where there is one), `cpu`, `cuda` or `cuda:1`."""
    threads: Count = 0
    """CPU threads; 0 chooses for the model and the cores."""
    lora: Lora | None = None
    """Train low-rank adapters instead of all weights; none: all weights."""
    new: NewModel = NewModel()
    """Sizes of the model where `path` is `new`."""


class SamplerSection(Section, frozen=True, tag_field="kind"):
    """Base of the settings of a sampler."""


class InProcess(SamplerSection, frozen=True, tag="in_process"):
    """The model under training samples itself; nothing is sent or copied."""


class Remote(SamplerSection, frozen=True, tag="remote"):
    """A vLLM or SGLang server samples with the trainer's weights, sent to it after each step."""

    url: Annotated[str, Meta(min_length=1)]
    """Such as `http://127.0.0.1:8000/v1`."""
    folder: Annotated[str, Meta(min_length=1)]
    """Model folder that the server was started on; weights travel through it. Made where there is
    none, so that the server can be started."""
    model: str = ""
    """The name under which the server serves it; empty: the only one that it has."""
    dialect: Literal["sglang", "vllm"] = "sglang"
    """How the server is told to load weights again."""
    version_path: str = ""
    """Route, such as `/weights`, whose JSON says `weight_version` and, where the server knows it,
    `weights_checksum`; asked after each update. Empty: not asked."""
    update_every: Positive = 1
    """Steps between two updates of the server; above 1 needs `rollout.max_staleness`."""
    api_key_env: str = ""
    """Environment variable with the server's key."""
    concurrency: Positive = 64
    """Requests at a time."""
    attempt_s: Seconds = 600.0
    """Deadline of one request."""
    deadline_s: Seconds = 1800.0
    """Deadline of one request with its retries."""
    retries: Count = 4
    """How often a request that failed is sent again."""

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ArgumentError(f"url: got {short(self.url)}, expected http://host:port/v1")
        if self.version_path and not self.version_path.startswith("/"):
            raise ArgumentError(
                f"version_path: got {short(self.version_path)}, expected a route such as /weights"
            )


Sampler = InProcess | Remote


class Update(Section, frozen=True):
    """How a step's rollouts become gradients."""

    epochs: Positive = 1
    """How often a step's rollouts are gone through."""
    minibatches: Positive = 1
    """Optimiser updates of each epoch; whole groups are dealt to them."""
    micro_batch_tokens: Count = 0
    """Token budget of one forward and backward pass; 0 chooses. Gradients do not depend on it."""
    share_prompts: bool = True
    """Compute a group's prompt once for all its responses; gradients do not depend on it."""


class Optimiser(Section, frozen=True):
    """AdamW with float32 master weights."""

    learning_rate: Annotated[float, Meta(ge=0.0, le=10.0)] = 1e-5
    """Peak learning rate."""
    warmup_steps: Count = 0
    """Steps over which the learning rate rises from 0."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate goes on after the warm-up."""
    final_ratio: Share = 0.0
    """Learning rate at the last step, as a share of the peak (linear and cosine)."""
    weight_decay: Annotated[float, Meta(ge=0.0, le=100.0)] = 0.0
    """Decoupled weight decay of AdamW."""
    decay: Literal["all", "matrices", "no_embeddings"] = "all"
    """What decays: all weights; matrices without embeddings, norms and biases; or everything but the
    embeddings (OLMo's way). A head that is tied to the embedding does not decay with it."""
    beta1: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.9
    """Decay of the mean of the gradients."""
    beta2: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.99
    """Decay of the mean of their squares."""
    eps: Annotated[float, Meta(gt=0.0, le=1.0)] = 1e-8
    """Added to the root of that mean."""
    clip_norm: Amount = 1.0
    """0: no clipping."""


class Evaluation(Section, frozen=True):
    """Held-out greedy evaluation: always before the first and after the last step."""

    every: Count = 0
    """Also every so many steps; 0: no."""
    prompts: Count = 100
    """0: no evaluation."""
    max_tokens: Count = 0
    """0: the rollout's budget."""
    part: str = ""
    """Which reward is the score; empty: the total."""


class Checkpoint(Section, frozen=True):
    """Hugging Face folders that load as they lie, with the trainer's state inside."""

    every: Count = 10
    """Steps between checkpoints; 0: only at the end."""
    keep: Positive = 2
    """Newest checkpoints that are kept."""


class Guards(Section, frozen=True):
    """When a run that means nothing stops."""

    useless_steps: Positive = 10
    """Stop after so many steps in a row without one useful group."""
    failed_share: Share = 0.5
    """Stop when more than this share of a step's rewards has no value."""
    sampler_mismatch_warn: Amount = 0.1
    """Warn where the sampler's and the trainer's log-probs of the sampled tokens are further apart
    than this on average, in nats; 0: never."""
    sampler_mismatch_stop: Amount = 2.0
    """Stop there, before the update; 0: never. Neither looks at rollouts of kind `recorded`."""
    memory_times: Amount = 10.0
    """Refuse to start where a step would need more than so many times the free memory; 0: never."""
    quiet_s: Amount = 30.0
    """Say what the run waits for after so many seconds in which nothing moved; 0: never."""


class Experts(Section, frozen=True):
    """Where demonstrations come from: for `train.kind = "sft"`, and `sft` in `policy.auxiliary`."""

    task: TaskConfig | None = None
    """Tasks that carry a demonstration; without it, the run's own."""
    field: str = "demonstration"
    """Task field that holds the expert's answer."""


class Curriculum(Section, frozen=True):
    """Easy tasks first: stages by how often the start model fails at a task."""

    thresholds: Annotated[tuple[float, ...], Meta(min_length=1)] = (0.5, 0.8, 1.0)
    """Stage s trains on tasks of at most this difficulty, 1 - pass rate."""
    pool: Positive = 256
    """How many training tasks are measured; the stages draw from these."""
    samples: Positive = 4
    """Answers of the start model to each."""
    passing: float = 1.0
    """An answer passes where its reward is at least this."""
    replay: Share = 0.2
    """Share of easier tasks in later stages."""
    patience: Positive = 2
    """Evaluations without a gain of `gain` after which the next stage begins."""
    gain: Amount = 0.005
    """Rise of the held-out score that counts as a gain."""
    always: str = ""
    """`field=value` of tasks that belong to every stage, such as those of rare rules."""

    def __post_init__(self) -> None:
        is_rising = all(a < b for a, b in itertools.pairwise(self.thresholds))
        if not is_rising or not all(0 <= t <= 1 for t in self.thresholds):
            raise ArgumentError(
                f"thresholds: got {list(self.thresholds)}, expected rising numbers from 0 to 1"
            )
