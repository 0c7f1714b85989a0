"""The settings of search self-play: `options` of the rollout."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from burnish.agents.ssp.pool import Strategy
from burnish.agents.ssp.rules import RewardType, Rules

REWARD = "game"
"""Name of the reward that both roles bring: `[[rewards]] kind = "env", name = "game"`."""
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Positive = Annotated[int, Meta(ge=1, le=1_000_000)]


class SelfPlay(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `options` of the game."""

    corpus: Annotated[str, Meta(min_length=1)] = "burnish.agents.ssp.world:corpus"
    """Function that gives a retriever: `my_file.py:name` or `package.module:name`."""
    corpus_options: dict[str, Any] = msgspec.field(default_factory=dict)
    """Its arguments."""
    top_k: Positive = 3
    """Passages a search returns."""
    mode: Literal["game", "solver"] = "game"
    """solver: no proposer; the task's own `question` is solved, which is plain policy optimisation."""
    train: tuple[Literal["proposer", "solver"], ...] = ("proposer", "solver")
    """Roles that are trained; the other one plays, and is no part of the batch."""
    proposer_samples: Positive = 1
    """Questions to each answer; 1: the proposer is a group of one."""
    reward_type: RewardType = "1-acc"
    """1-acc, intermediate_difficulty or format_only."""
    left: float = 0.0
    """Of intermediate_difficulty."""
    right: float = 1.0
    """Of intermediate_difficulty."""
    invalid_reward: float = 0.0
    """Of a proposer without a valid question. Below 0 the valid rate may collapse."""
    rules: Rules = Rules()
    """The rule filter."""
    reader: Literal["auto", "policy", "judge", "code", "none"] = "auto"
    """Who reads questions back: auto is the judge where there is one, else the policy; none: no
    check."""
    reader_path: str = ""
    """Function `(question, documents) -> answers, best first` of the reader `code`."""
    judge: str = ""
    """Model that judges answers which do not match word by word: `http://host:port/v1#model`."""
    judge_key_env: str = ""
    """Environment variable with the server's key."""
    noise: Count = 4
    """Blocks of other trajectories' documents among those that a reader gets."""
    readers: Positive = 1
    """Readings of each question."""
    agreement: Positive = 1
    """Readings that must find the answer."""
    reader_tokens: Positive = 70
    """Longest reply of a reader."""
    reader_temperature: Annotated[float, Meta(ge=0.0, le=10.0)] = 0.1
    """Of a reader."""
    unique: bool = False
    """Ask the reader for every answer that fits, and reject questions with several."""
    strategy: Strategy = "periodic"
    """What fills the place of an invalid question: periodic, full, resample or dummy."""
    reset_every: Count = 10
    """Steps after which the pool of `periodic` is emptied."""
    keep_ratio: Share = 0.0
    """Share of the newest questions that a reset keeps."""
    ceiling: Share = 1.0
    """Highest success rate of a question that is played again, while there are such."""
    retries: Count = 5
    """Further answers that `resample` may draw for each place."""
    drop_flat: bool = False
    """Leave out proposer groups without spread, and their solvers."""

    def __post_init__(self) -> None:
        if self.agreement > self.readers:
            raise ValueError(
                f"agreement is {self.agreement}; expected at most readers, {self.readers}"
            )
        if self.reader == "code" and not self.reader_path:
            raise ValueError("reader 'code' needs reader_path: a function (question, documents)")
        if self.reader == "judge" and not self.judge:
            raise ValueError("reader 'judge' needs judge: http://host:port/v1#model")
        if not self.train:
            raise ValueError("train is empty; expected proposer, solver or both")
        if self.mode == "solver" and "solver" not in self.train:
            raise ValueError("mode 'solver' has no proposer to train; expected train = ['solver']")
