"""The parts that a run is made of beside its trainer, and what each of them may use."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from burnish.boundary import Count, NonNegative, PositiveInt, Seconds
from burnish.config.train_kinds import Section
from burnish.errors import ArgumentError


class Part(Section, frozen=True):
    """Base of a role: what each of its processes may use."""

    WORD: ClassVar[str] = "count"
    """The key that `cluster.judges=2` sets."""

    gpus: Annotated[float, Meta(ge=0.0, le=64.0)] = 0.0
    """GPUs of each; a share such as 0.5 is the memory it may take of one that it has in common."""
    cpus: Count = 0
    """Cores of each; 0: whatever is free."""
    memory_gb: NonNegative = 0.0
    """Memory that is kept free for each; 0: none."""


class Trainers(Part, frozen=True):
    """The processes that train, which are one run together."""

    count: PositiveInt = 1
    """How many."""


class Samplers(Part, frozen=True):
    """The servers that sample with the trainer's weights."""

    count: Count = 0
    """How many; 0: the trainers sample themselves, or `sampler` names servers of your own."""
    engine: Literal["burnish", "vllm", "sglang"] = "burnish"
    """What serves; `burnish` draws what a trainer would draw itself."""
    arguments: tuple[str, ...] = ()
    """Further words of the command that starts a server, such as `--max-model-len=4096`."""


class Judges(Part, frozen=True):
    """The servers that score answers with the run's rewards (`burnish serve-reward`)."""

    count: Count = 0
    """How many; 0: the trainers score themselves."""


class Cluster(Section, frozen=True):
    """Who starts the parts of a run, and watches them."""

    WORD: ClassVar[str] = "kind"
    """The key that `cluster=local` sets."""

    kind: Literal["none", "local", "ray", "torchrun"] = "none"
    """`local` starts the parts on this machine, `ray` as actors of a Ray cluster; both start again
    what dies. `none` and `torchrun` start nothing: a launcher, such as torchrun or Slurm, may have."""
    address: str = ""
    """Ray's address; empty: the cluster that this machine belongs to, or a new one on it."""
    trainers: Trainers = Trainers()
    """The processes that train."""
    samplers: Samplers = Samplers()
    """The servers that sample."""
    judges: Judges = Judges()
    """The servers that score."""
    start_s: Seconds = 600.0
    """A part that is not ready after so long is started again."""
    heartbeat_s: Annotated[float, Meta(ge=1.0, le=1e6)] = 60.0
    """A part that has given no sign of life for so long is killed and started again. A trainer gives
    one every 5 seconds, or every quarter of `guards.quiet_s`."""
    restarts: Count = 3
    """How often a part is started again before the run stops; after ten good minutes it is new."""
    fewer: bool = False
    """Go on with one trainer less where one cannot be started any more."""

    def check(self) -> None:
        starts = self.kind in ("local", "ray")
        parts = self.trainers.count - 1 + self.samplers.count + self.judges.count
        if parts and not starts:
            raise ArgumentError(
                f"cluster.kind: got '{self.kind}', which starts nothing, with parts to start; "
                "expected local or ray"
            )
