"""Short warnings about a run that goes on but may not mean much."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from burnish.cli.console import share

if TYPE_CHECKING:
    from burnish.training.events import StepDone

FAILED = 0.1
CUT = 0.5
SPOKEN = (1, 5, 25, 125, 625)
"""How many steps of one trouble bring a warning: at once, and then ever more rarely."""


class Watch:
    """Sees every step; `budget` is the token limit that cuts answers."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._seen: Counter[int] = Counter()

    def see(self, event: StepDone) -> list[str]:
        """Warnings of this step."""
        # Who abstains has said so on purpose, as the reference of a pairwise judge does.
        failed = 1.0 - event.metrics.get("status/ok", 1.0) - event.metrics.get("status/abstain", 0)
        cut = event.metrics.get("length/truncated_share", 0.0)
        troubles = {
            (
                "no useful group: within each prompt all answers got the same reward, or the "
                "recipe left them out, so this step teaches nothing"
            ): event.useful_groups == 0 and "loss/sft" not in event.metrics,
            f"{share(failed)} of the rewards have no value ({_statuses(event)})": failed > FAILED,
            f"{share(cut)} of the answers were cut at rollout.max_tokens={self.budget}": cut > CUT,
        }
        warnings = []
        for kind, (text, is_on) in enumerate(troubles.items()):
            self._seen[kind] += is_on
            count = self._seen[kind]
            if is_on and count in SPOKEN:
                so_far = f" ({count} such steps so far)" if count > 1 else ""
                warnings.append(f"step {event.step}: {text}{so_far}.")
        return warnings


def _statuses(event: StepDone) -> str:
    shares = {
        name.removeprefix("status/"): value
        for name, value in event.metrics.items()
        if name.startswith("status/") and name != "status/ok" and value > 0
    }
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {share(value)}" for name, value in ordered) or "unknown"
