"""The closed, typed shape of a training config; names and numbers only."""

from __future__ import annotations

import itertools
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from burnish.arguments import refused
from burnish.boundary import Count, Fraction, Name, NonNegative, PositiveInt, Seconds, Seed, Share
from burnish.config.cluster import Cluster as Cluster
from burnish.config.train_kinds import (
    Adversarial as Adversarial,
    CodecSizes as CodecSizes,
    CodecTrain as CodecTrain,
    DiffusionPolicyTrain as DiffusionPolicyTrain,
    DiffusionTrain as DiffusionTrain,
    DistilTrain as DistilTrain,
    DpoTrain as DpoTrain,
    FunctionTrain as FunctionTrain,
    GeneratorSizes as GeneratorSizes,
    LatentsTrain as LatentsTrain,
    PairTrain as PairTrain,
    PlainName,
    PolicyTrain as PolicyTrain,
    PretrainTrain as PretrainTrain,
    ProcessRewardModelTrain as ProcessRewardModelTrain,
    RewardModelTrain as RewardModelTrain,
    Section,
    SftTrain as SftTrain,
    SpeechTrain as SpeechTrain,
    Train as Train,
    TrainSection as TrainSection,
)
from burnish.errors import ArgumentError
from burnish.lm.new_model import NewModel
from burnish.numbers import Multiple, in_steps
from burnish.policy.recipe import Recipe
from burnish.rewards.config import RewardConfig
from burnish.rollouts import RolloutConfig, SingleTurn
from burnish.tasks.base import NoTasks
from burnish.tasks.config import TaskConfig

FolderName = Annotated[
    str,
    Meta(
        pattern=r"^(?:(?!\s|\.{1,2}\Z)[^/\\\x00-\x1f\x7f]{1,200}(?<!\s))?\Z",
        description="the name of one folder; run.folder says where it lies",
    ),
]
Url = Annotated[str, Meta(pattern="^https?://", description="http://host:port/v1")]
Route = Annotated[str, Meta(pattern=r"^(?:/.*)?\Z", description="a route such as /weights")]


class Run(Section, frozen=True):
    """Run folder, name and seed."""

    name: FolderName = ""
    """Folder name; empty takes the recipe's name and the config's hash."""
    folder: str = "runs"
    """Folder that holds runs."""
    seed: Seed = 0
    """Seed from which all others of the run are derived."""


class Lora(Section, frozen=True):
    """Low-rank adapters (needs the `lora` extra)."""

    rank: PositiveInt = 16
    """Rank of the adapters."""
    alpha: NonNegative = 32.0
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

    path: Name = "smollm2"
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
    shard: Literal["none", "full"] = "none"
    """How several processes hold the model: `none`: each the whole; `full`: each a slice of every
    weight, gradient and moment, and the whole in 16 bit only while it samples or evaluates."""


class SamplerSection(Section, frozen=True, tag_field="kind"):
    """Base of the settings of a sampler."""


class InProcess(SamplerSection, frozen=True, tag="in_process"):
    """The model under training samples itself; nothing is sent or copied."""


class Remote(SamplerSection, frozen=True, tag="remote"):
    """vLLM or SGLang servers sample with the trainer's weights, sent to them after each step."""

    folder: Name
    """Model folder that the servers were started on. Made where there is none, so that they can be
    started."""
    urls: tuple[Url, ...] = ()
    """Such as `["http://127.0.0.1:8000/v1"]`."""
    dialect: Literal["sglang", "vllm"] = "sglang"
    """How a server is told of new weights."""
    weights: Literal["folder", "group"] = "folder"
    """How weights travel: through the folder, or to the workers in a process group (vLLM, with
    burnish installed beside it)."""
    model: str = ""
    """The name under which the servers serve it; empty: the only one that they have."""
    version_path: Route = ""
    """Route, such as `/weight_info`, whose JSON says `weight_version` and, where the server knows
    it, `weights_checksum` of what its workers hold; asked after each update. Empty: not asked."""
    api_key_env: str = ""
    """Environment variable with the servers' key."""
    concurrency: PositiveInt = 64
    """Requests to one server at a time."""
    deadline_s: Seconds = 600.0
    """Deadline of one answer with its retries, and of an update; a server that keeps it no longer is
    asked no more until it has the current weights again."""
    retries: Count = 4
    """How often a request that failed is sent to the same server again."""

    def check(self) -> None:
        if self.weights == "group" and self.dialect != "vllm":
            raise refused("weights", self.weights, "folder with dialect = 'sglang'")


Sampler = InProcess | Remote


class Update(Section, frozen=True):
    """How a step's rollouts become gradients."""

    epochs: PositiveInt = 1
    """How often a step's rollouts are gone through."""
    minibatches: PositiveInt = 1
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
    beta1: Fraction = 0.9
    """Decay of the mean of the gradients."""
    beta2: Fraction = 0.99
    """Decay of the mean of their squares."""
    eps: Annotated[float, Meta(gt=0.0, le=1.0)] = 1e-8
    """Added to the root of that mean."""
    clip_norm: NonNegative = 1.0
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
    keep: PositiveInt = 2
    """Newest checkpoints that are kept."""


class Guards(Section, frozen=True):
    """When a run that means nothing stops."""

    useless_steps: PositiveInt = 10
    """Stop after so many steps in a row without one useful group."""
    failed_share: Share = 0.5
    """Stop when more than this share of a step's rewards has no value."""
    sampler_mismatch_warn: NonNegative = 0.1
    """Warn where the sampler's and the trainer's log-probs of the sampled tokens are further apart
    than this on average, in nats; 0: never."""
    sampler_mismatch_stop: NonNegative = 2.0
    """Stop there, before the update; 0: never. Neither looks at rollouts of kind `recorded`."""
    memory_times: NonNegative = 10.0
    """Refuse to start where a step would need more than so many times the free memory; 0: never."""
    quiet_s: NonNegative = 30.0
    """Say what the run waits for after so many seconds in which nothing moved; 0: never."""
    process_s: Seconds = 1800.0
    """Of several processes, end the run where one has waited so many seconds for the others."""


class Experts(Section, frozen=True):
    """Where demonstrations come from: for `train.kind = "sft"`, and `sft` in `policy.auxiliary`."""

    task: TaskConfig | None = None
    """Tasks that carry a demonstration; without it, the run's own."""
    field: str = "demonstration"
    """Task field that holds the expert's answer."""


class Curriculum(Section, frozen=True):
    """Easy tasks first: stages by how often the start model fails at a task."""

    thresholds: Annotated[tuple[Share, ...], Meta(min_length=1)] = (0.5, 0.8, 1.0)
    """Stage s trains on tasks of at most this difficulty, 1 - pass rate."""
    pool: PositiveInt = 256
    """How many training tasks are measured; the stages draw from these."""
    samples: PositiveInt = 4
    """Answers of the start model to each."""
    passing: float = 1.0
    """An answer passes where its reward is at least this."""
    replay: Fraction = 0.2
    """Share of easier tasks in later stages."""
    patience: PositiveInt = 2
    """Evaluations without a gain of `gain` after which the next stage begins."""
    gain: NonNegative = 0.005
    """Rise of the held-out score that counts as a gain."""
    always: str = ""
    """`field=value` of tasks that belong to every stage, such as those of rare rules."""

    def check(self) -> None:
        if not all(a < b for a, b in itertools.pairwise(self.thresholds)):
            raise ArgumentError(f"thresholds: got {list(self.thresholds)}, expected rising numbers")


class Stage(Section, frozen=True):
    """A training before the main one, on the same weights; a warm start is one of kind `sft`."""

    WORD: ClassVar[str] = "train"
    """The key that `stages=sft` sets."""

    name: PlainName = "warm_start"
    """Folder of its weights, in `stages/`, and prefix of its metrics."""
    steps: PositiveInt | Multiple = 100
    """A number, or a multiple of the main training's steps such as `"2.5x"`, rounded: a trial
    with few steps then has a short warm start too."""
    train: Train = SftTrain()
    """Kind of training, with its settings."""
    optimiser: Optimiser = Optimiser(learning_rate=1e-4, warmup_steps=10, schedule="linear")
    """Its own optimiser; the main training begins with a fresh one."""
    checkpoint_every: Count = 50
    """Steps between checkpoints; 0: only its result is kept."""


class Config(Section, frozen=True):
    """Everything a run depends on."""

    task: TaskConfig = NoTasks()
    """Where prompts come from; `pretrain`, `codec`, `speech`, and `diffusion` on text of files, need none."""
    rewards: tuple[RewardConfig, ...] = ()
    """What answers are paid for; at least one where the algorithm samples answers, `sft` needs none."""
    steps: PositiveInt = 50
    """Optimiser steps of the main training; each samples or reads one batch."""
    train: Train = PolicyTrain()
    """Kind of training, with its settings."""
    stages: tuple[Stage, ...] = ()
    """Trainings that run before the main one on the same weights."""
    policy: Recipe = Recipe()
    """One component of each slot of policy optimisation; for `train.kind = "policy"`."""
    experts: Experts = Experts()
    """Where demonstrations come from."""
    curriculum: Curriculum | None = None
    """Easy tasks first; none: tasks in the order of the seed."""
    run: Run = Run()
    """Run folder, name and seed."""
    model: Model = Model()
    """What is trained, where and in which precision."""
    sampler: Sampler = InProcess()
    """Who samples the answers."""
    cluster: Cluster = Cluster()
    """The processes that a run is made of, and what each may use."""
    rollout: RolloutConfig = SingleTurn()
    """How a step samples: how many prompts, answers and tokens."""
    update: Update = Update()
    """How a step's rollouts become gradients."""
    optimiser: Optimiser = Optimiser()
    """AdamW and its learning-rate schedule."""
    evaluation: Evaluation = Evaluation()
    """Held-out evaluation."""
    checkpoint: Checkpoint = Checkpoint()
    """How often weights are saved, and how many are kept."""
    guards: Guards = Guards()
    """When a run warns or stops."""
    layer_metrics_every: Count = 0
    """Store norms of the residual streams, updates and gradients of every layer each so many steps,
    beginning with the first, and the held-out loss without the last quarter of the layers at the end;
    0: never."""
    trackers: tuple[Literal["wandb", "tensorboard", "mlflow"], ...] = ()
    """Where metrics, config and result are sent beside the run's store; each needs its extra."""
    tracked_samples: Count = 0
    """Answers of each step that trackers get as a table."""

    def check(self) -> None:
        kinds = [stage.train for stage in self.stages] + [self.train]
        if isinstance(self.task, NoTasks) and any(kind.needs_tasks for kind in kinds):
            raise ArgumentError("missing key 'task'; expected a table")
        if isinstance(self.train, PolicyTrain | DiffusionPolicyTrain) and not self.rewards:
            raise ArgumentError(
                "rewards: got none, expected at least one for train.kind = "
                f"'{self.train.__struct_config__.tag}'; sft, dpo, reward_model and distil need none"
            )
        names = [stage.name for stage in self.stages]
        if len(set(names)) < len(names):
            raise ArgumentError(
                f"stages: got the names {', '.join(names)}, expected different ones"
            )
        if isinstance(self.sampler, Remote) and not self.rollout.is_sampled:
            raise ArgumentError(
                "sampler.kind: got remote with rollout.kind = 'recorded', which samples nothing; "
                "expected in_process"
            )

    def stage_steps(self, stage: Stage) -> int:
        """How many steps a stage has."""
        return max(1, in_steps(stage.steps, self.steps))


FREE = (
    "run.folder",
    "run.name",
    "evaluation.every",
    "checkpoint.",
    "guards.",
    "cluster.",
    "model.shard",
    "trackers",
    "tracked_samples",
    *(
        f"sampler.{key}"
        for key in ("urls", "model", "folder", "concurrency", "deadline_s", "retries")
    ),
    *(
        f"rewards.*.{where}{key}"
        for where in ("", "judge.")
        for key in (
            *("budget.", "concurrency", "requests_per_minute", "tokens_per_minute"),
            *("media_count", "media_mb"),
        )
    ),
)
"""Keys that may change between a run and its continuation; `*` is one part of a key."""


def free_keys(config: Config) -> tuple[str, ...]:
    """`FREE`, and what a continuation leaves to the choice that the run made when it began."""
    return FREE if config.rollout.max_tokens else (*FREE, "rollout.max_tokens")
