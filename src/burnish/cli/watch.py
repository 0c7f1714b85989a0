"""Short warnings about a run that goes on but may not mean much."""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnish.cli.console import share

if TYPE_CHECKING:
    from burnish.training.events import StepDone

FAILED = 0.1
CUT = 0.5
EVERY = 5


class Watch:
    """Sees every step; speaks when something begins, and now and then while it lasts."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._lasting: dict[str, int] = {}

    def see(self, event: StepDone) -> list[str]:
        """Warnings of this step."""
        metrics = event.metrics
        failed = 1.0 - metrics.get("status/ok", 1.0)
        cut = metrics.get("length/truncated_share", 0.0)
        found = {
            "useless": event.useful_groups == 0,
            "failed": failed > FAILED,
            "cut": cut > CUT,
        }
        texts = {
            "useless": (
                f"step {event.step}: no useful group: within each prompt all answers got the "
                "same reward, so this step teaches nothing."
            ),
            "failed": f"step {event.step}: {share(failed)} of the rewards have no value "
            f"({_statuses(event)}).",
            "cut": (
                f"step {event.step}: {share(cut)} of the answers were cut at "
                f"rollout.max_tokens={self.budget}."
            ),
        }
        return [texts[name] for name, is_on in found.items() if self._is_news(name, is_on)]

    def _is_news(self, name: str, is_on: bool) -> bool:
        lasting = self._lasting.get(name, 0) + 1 if is_on else 0
        self._lasting[name] = lasting
        return is_on and (lasting - 1) % EVERY == 0


def _statuses(event: StepDone) -> str:
    shares = {
        name.removeprefix("status/"): value
        for name, value in event.metrics.items()
        if name.startswith("status/") and name != "status/ok" and value > 0
    }
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {share(value)}" for name, value in ordered) or "unknown"
