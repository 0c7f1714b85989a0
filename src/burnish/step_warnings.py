"""What goes wrong in a training run that goes on: steps that teach nothing, rewards without a value.

The terminal and notebooks print it; the run's store keeps it as events of the kind `warning`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from burnish.config.recipes import as_shipped
from burnish.metrics import GATE_OPEN, MISMATCH, NO_FACTS
from burnish.records import Status
from burnish.texts import counted, share

if TYPE_CHECKING:
    from burnish.store.reader import RunReader
    from burnish.training.events import StepDone

WARNING = "warning"
"""Kind of the stored event."""
RAISED = "reward_errors"
"""Key in the data of the warning, at a run's end, that a reward of the user's own raised."""
CUT_SHARE = 1 / 3
"""Share of answers cut at the token limit from which on it is told."""
FAILED_SHARE = 0.1
ONCE = ("cut", "gate", "no_facts")
"""Troubles that are there from the start: one word about them is enough."""
SPOKEN = (1, 5, 25, 125, 625)
"""How many steps of one trouble bring a warning: at once, and then ever more rarely."""


def watch_of(config: Any, origins: Mapping[str, str]) -> Watch:
    """The watch over a run with this config, whose settings came from `origins`."""
    mismatch = config.guards.sampler_mismatch_warn if config.rollout.is_sampled else 0.0
    turn = getattr(config.rollout, "turn_tokens", 0)  # rollouts of one turn have none
    # A shipped recipe's own limit fits its own task and model: the short answers are meant.
    is_meant = as_shipped(origins, ("rollout.max_tokens", "task.kind", "model.path"))
    budget = 0 if is_meant else config.rollout.max_tokens
    kind = config.rollout.__struct_config__.tag
    return Watch(budget, mismatch, turn, is_program=kind == "agent")


class Watch:
    """Sees every step; `budget` is the token limit that cuts answers (0: it may), `turn` that of one
    reply (0: none), `mismatch` the distance of sampler and trainer from which on to warn (0: never)."""

    def __init__(
        self, budget: int, mismatch: float = 0.0, turn: int = 0, *, is_program: bool = False
    ) -> None:
        """`is_program`: replies are asked for by a program, which may have limits of its own."""
        self.mismatch = mismatch
        self.budget, self.turn, self.is_program = budget, turn, is_program
        self._seen: Counter[str] = Counter()

    def see(self, event: StepDone) -> list[str]:
        """Warnings of this step, which each of them names."""
        return [f"step {event.step + 1}: {text}" for text in self.texts(event)]

    def texts(self, event: StepDone) -> list[str]:
        """The same without the step."""
        # Who abstains has said so on purpose, as the reference of a pairwise judge does.
        failed = 1.0 - event.metrics.get("status/ok", 1.0) - event.metrics.get("status/abstain", 0)
        cut = event.metrics.get("length/truncated_share", 0.0)
        apart = event.metrics.get(MISMATCH, 0.0)
        unread, empty = event.metrics.get(GATE_OPEN, 0.0), event.metrics.get(NO_FACTS, 0.0)
        is_useless = event.groups > 0 and event.useful_groups == 0
        troubles = {
            "useless": is_useless
            and "loss/sft" not in event.metrics
            and "no useful group: within each prompt all answers got the same reward, or the recipe "
            "left them out, so this step teaches nothing",
            "failed": failed > FAILED_SHARE
            and f"{share(failed)} of the rewards have no value ({_statuses(event)})",
            "cut": self.budget > 0
            and cut > CUT_SHARE
            and cut_text(cut, self.budget, self.turn, is_program=self.is_program),
            "gate": unread > 0 and gate_text(unread),
            "no_facts": empty > 0 and no_facts_text(empty),
            "mismatch": 0 < self.mismatch < apart
            and f"the sampler's and the trainer's log-probs are {apart:.2g} nats "
            f"a token apart, above guards.sampler_mismatch_warn={self.mismatch:g}",
        }
        warnings = []
        for kind, text in troubles.items():
            if not text:
                continue
            self._seen[kind] += 1
            count = self._seen[kind]
            if count in (SPOKEN[:1] if kind in ONCE else SPOKEN):
                so_far = f" ({count} such steps so far)" if count > 1 else ""
                warnings.append(f"{text}{so_far}.")
        return warnings


def _statuses(event: StepDone) -> str:
    shares = {
        name.removeprefix("status/"): value
        for name, value in event.metrics.items()
        if name.startswith("status/") and name != "status/ok" and value > 0
    }
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {share(value)}" for name, value in ordered) or "unknown"


def cut_text(cut: float, budget: int, turn: int = 0, *, is_program: bool = False) -> str:
    """What answers that were cut mean, and what to do about it.

    Which limit cut them is not known: that of the rollout, that of one reply, or a program's own.
    """
    limit, longer = f"rollout.max_tokens={budget}", f"rollout.max_tokens={2 * budget}"
    if turn:
        limit += f" or rollout.turn_tokens={turn}"
        longer += f" and rollout.turn_tokens={2 * turn}"
    if is_program:
        limit += " or by the program's own limit"
        longer += ", and in the program"
    return (
        f"{share(cut)} of the answers were cut at {limit}: what they would have come to is neither "
        f"seen nor rewarded; give them room with {longer}"
    )


def gate_text(open_share: float) -> str:
    """What an open gate of EVPV means."""
    return (
        f"{share(open_share)} of the answers have premises that nobody could check: their evidence, or "
        "a reply about it, could not be read, so that the gate of premises is open for them. The "
        "reason stands in each reward; options.unchecked = 'zero' closes it"
    )


def no_facts_text(empty: float) -> str:
    """What evidence without a fact means to EVPV."""
    return (
        f"the evidence of {share(empty)} of the answers holds no fact: every premise of theirs is "
        "unknown, true or not"
    )


def raised_in(store: RunReader) -> str:
    """How many answers have no value because a reward raised, and the first exception; or nothing."""
    count = store.summary().statuses.get(Status.REWARD_ERROR.value, 0)
    first = next(store.samples(status=Status.REWARD_ERROR.value, limit=1), None) if count else None
    if first is None:
        return ""
    return f"{counted(count, 'answer')} without a value: {' '.join(first.reward.reason.split())}."
