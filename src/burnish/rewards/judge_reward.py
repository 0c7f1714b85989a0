"""A judge as a recipe file names it: `kind = "judge"`.

[[rewards]]
kind = "judge"
with = "openrs"
model = "http://127.0.0.1:8000/v1#my-judge"
anchor = "reference"

The same table, without an anchor, is a judge of `kind = "versus"`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from burnish.errors import UserError
from burnish.records import Response, Reward, Task
from burnish.rewards.checks.base import CheckConfig
from burnish.rewards.combine import Combination
from burnish.rewards.pair_scorers import OrderRule
from burnish.rewards.scorer import Scope, Scorer, checked

if TYPE_CHECKING:
    from burnish.rewards.judges.asking import JudgeModel
    from burnish.rewards.scorer_judge import ScorerJudge


class Renamed(Combination):
    """A scorer under the name that a recipe gives it."""

    def __init__(self, scorer: Scorer, name: str) -> None:
        super().__init__(name, (scorer,), scorer.scope)

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        rewards = await checked(self.children[0], task, responses)
        return [replace(reward, name=self.name) for reward in rewards]


class BudgetConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a judge may spend in one run, all its continuations together; no limit by default.

    Each of several processes has a budget of its own.
    """

    calls: int | None = None
    tokens: int | None = None
    usd: float | None = None


class JudgeRewardConfig(CheckConfig, frozen=True, tag="judge"):
    """A language model as a judge: above 0 where the anchor is beaten, [0, 1] for a point judge.

    Against an anchor the value lies in [-1, 1], save for `openrs` with the rule "mean" or in one
    order: its own scores, within its option `clip` (4 by default).
    """

    method: str = msgspec.field(name="with")
    """direct, point, list, openrs, skill_rm, genrm or rubric."""
    model: str
    """smollm2, tiny, a model folder, http://host:port/v1#model or replay:FILE.jsonl."""
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    """The method's own settings."""
    anchor: str = ""
    """Task field with the response that a pair judge compares with."""
    both_orders: bool = True
    rule: OrderRule | None = None
    """How two orders become one value; the method's own by default."""
    temperature: float = 0.0
    max_tokens: int | None = None
    """Of one reply; by default 1024, or what the method needs."""
    seed: int = 0
    repairs: int = 1
    """How often an unreadable reply is asked for once more."""
    deadline_s: float = 120.0
    """Wall clock of one call."""
    cache: str = ""
    """SQLite file with replies that need not be paid for again."""
    record: str = ""
    """JSON-lines file to which every question and raw reply is appended."""
    budget: BudgetConfig = BudgetConfig()
    api_key_env: str = ""
    """Name of the environment variable that holds the server's key."""
    concurrency: int = 16
    """Requests under way at a server at once."""
    prompt_usd: float = 0.0
    completion_usd: float = 0.0
    """Prices in dollars for a million tokens."""

    def build(self, base: str | Path) -> Scorer:
        """The scorer: pointwise, a pair judge against its anchor."""
        from burnish.rewards.judges.build import build_judge

        scorer = build_judge(
            self.method,
            self.judge_model(base),
            self.options,
            both_orders=self.both_orders,
            rule=self.rule,
            anchor=self.anchor or None,
        )
        if scorer.scope is Scope.PAIR:
            raise UserError(
                f"reward '{self.title}': judge '{self.method}' compares two responses; give "
                "`anchor`, the task field to compare with, or use it as the judge of "
                'kind = "versus", which compares within the group'
            )
        return Renamed(scorer, self.name) if self.name not in ("", scorer.name) else scorer

    def build_pair(self, base: str | Path) -> ScorerJudge:
        """The judge of `versus`, which sees to both orders itself."""
        from burnish.rewards.judges.build import build_judge
        from burnish.rewards.scorer_judge import ScorerJudge

        if self.anchor:
            raise UserError(
                f"judge '{self.method}' of a versus reward has the anchor '{self.anchor}'; expected "
                "none: versus draws its references from the group"
            )
        scorer = build_judge(self.method, self.judge_model(base), self.options, both_orders=False)
        return ScorerJudge(scorer)

    def judge_model(self, base: str | Path) -> JudgeModel:
        """The model with its cache, record and budget; nothing is asked or loaded yet."""
        from burnish.lm.base import Sampling
        from burnish.lm.named import open_lm
        from burnish.rewards.judges.asking import GREEDY, Budget, JudgeModel

        root = Path(base)
        limit = self.max_tokens or GREEDY.max_tokens
        is_usual = self.max_tokens is None and self.temperature == 0
        sampling = GREEDY if is_usual else Sampling(temperature=self.temperature, max_tokens=limit)
        return JudgeModel(
            open_lm(_placed(self.model, root), **self._server()),
            sampling=sampling,
            repairs=self.repairs,
            seed=self.seed,
            cache=root / self.cache if self.cache else None,
            record=root / self.record if self.record else None,
            budget=Budget(**msgspec.structs.asdict(self.budget)),
            deadline_s=self.deadline_s,
        )

    def _server(self) -> dict[str, Any]:
        if "://" not in self.model:
            is_local = not self.model.startswith("replay:")
            return {"late": True} if is_local else {}
        from burnish.lm.http import Prices
        from burnish.lm.jobs import Limits

        return {
            "api_key_env": self.api_key_env or None,
            "limits": Limits(concurrency=self.concurrency),
            "prices": Prices(prompt_usd=self.prompt_usd, completion_usd=self.completion_usd),
        }


def _placed(model: str, root: Path) -> str:
    """A folder or a file that is named relative to the recipe, as a path from here."""
    if model.startswith("replay:"):
        path = root / model.removeprefix("replay:")
        return f"replay:{path}" if path.is_file() else model
    return str(root / model) if "://" not in model and (root / model).is_dir() else model
