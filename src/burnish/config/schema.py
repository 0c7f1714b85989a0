"""The closed, typed shape of a training config; names and numbers only.

A file such as `recipes/grpo.toml` fills it, `key=value` words on the command line override it, and
`burnish train --print-config` shows every value with where it came from.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from burnish.config.tables import (
    Checkpoint,
    Count,
    Curriculum,
    Evaluation,
    Experts,
    Guards,
    InProcess,
    Lora,
    Model,
    Optimiser,
    Positive,
    Remote,
    Run,
    Sampler,
    Section,
    Update,
    short,
)
from burnish.config.train_kinds import (
    PLAIN_NAME,
    Adversarial,
    CodecSizes,
    CodecTrain,
    DiffusionPolicyTrain,
    DiffusionTrain,
    DistilTrain,
    DpoTrain,
    FunctionTrain,
    GeneratorSizes,
    LatentsTrain,
    PolicyTrain,
    PretrainTrain,
    ProcessRewardModelTrain,
    RewardModelTrain,
    SftTrain,
    SpeechTrain,
    Train,
    TrainSection,
)
from burnish.errors import ArgumentError
from burnish.multiples import Multiple, in_steps
from burnish.policy.recipe import Recipe
from burnish.rewards.config import RewardConfig
from burnish.rollouts import RolloutConfig, SingleTurn
from burnish.tasks.base import NoTasks
from burnish.tasks.config import TaskConfig

__all__ = [
    "FREE",
    "Adversarial",
    "Checkpoint",
    "CodecSizes",
    "CodecTrain",
    "Config",
    "Curriculum",
    "DiffusionPolicyTrain",
    "DiffusionTrain",
    "DistilTrain",
    "DpoTrain",
    "Evaluation",
    "Experts",
    "FunctionTrain",
    "GeneratorSizes",
    "Guards",
    "InProcess",
    "LatentsTrain",
    "Lora",
    "Model",
    "Optimiser",
    "PolicyTrain",
    "PretrainTrain",
    "ProcessRewardModelTrain",
    "Remote",
    "RewardModelTrain",
    "RolloutConfig",
    "Run",
    "Sampler",
    "SftTrain",
    "SingleTurn",
    "SpeechTrain",
    "Stage",
    "Train",
    "TrainSection",
    "Update",
    "free_keys",
]


class Stage(Section, frozen=True):
    """A training before the main one, on the same weights; a warm start is one of kind `sft`."""

    WORD: ClassVar[str] = "train"
    """The key that `stages=sft` sets."""

    name: str = "warm_start"
    """Folder of its weights, in `stages/`, and prefix of its metrics."""
    steps: Positive | Multiple = 100
    """A number, or a multiple of the main training's steps such as `"2.5x"`, rounded: a trial
    with few steps then has a short warm start too."""
    train: Train = SftTrain()
    """Kind of training, with its settings."""
    optimiser: Optimiser = Optimiser(learning_rate=1e-4, warmup_steps=10, schedule="linear")
    """Its own optimiser; the main training begins with a fresh one."""
    checkpoint_every: Count = 50
    """Steps between checkpoints; 0: only its result is kept."""

    def __post_init__(self) -> None:
        if not PLAIN_NAME.fullmatch(self.name):
            raise ArgumentError(
                f"name: got {short(self.name)}, expected up to 60 letters, digits, '_' and '-'"
            )


class Config(Section, frozen=True):
    """Everything a run depends on."""

    task: TaskConfig = NoTasks()
    """Where prompts come from; `pretrain`, `codec`, `speech`, and `diffusion` on text of files, need none."""
    rewards: tuple[RewardConfig, ...] = ()
    """What answers are paid for; at least one where the algorithm samples answers, `sft` needs none."""
    steps: Positive = 50
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

    def __post_init__(self) -> None:
        kinds = [stage.train for stage in self.stages] + [self.train]
        if isinstance(self.task, NoTasks) and any(kind.needs_tasks for kind in kinds):
            raise ArgumentError("missing key 'task'; expected table")
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
        self._check_sampler()

    def stage_steps(self, stage: Stage) -> int:
        """How many steps a stage has."""
        return max(1, in_steps(stage.steps, self.steps))

    def _check_sampler(self) -> None:
        if not isinstance(self.sampler, Remote):
            return
        if not self.rollout.is_sampled:
            raise ArgumentError(
                "sampler.kind: got remote with rollout.kind = 'recorded', which samples nothing; "
                "expected in_process"
            )
        lag = (self.sampler.update_every - 1) * self.update.epochs * self.update.minibatches
        if lag > self.rollout.max_staleness:
            raise ArgumentError(
                f"rollout.max_staleness: got {self.rollout.max_staleness}, expected at least {lag}: "
                f"with sampler.update_every = {self.sampler.update_every} the server's weights lag "
                "by that many updates"
            )


FREE = (
    "run.folder",
    "run.name",
    "evaluation.every",
    "checkpoint.",
    "guards.",
    "trackers",
    "tracked_samples",
    *(
        f"sampler.{key}"
        for key in ("url", "model", "folder", "concurrency", "attempt_s", "deadline_s", "retries")
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
