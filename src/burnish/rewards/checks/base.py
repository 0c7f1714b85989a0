"""What the checks share: a closed config, the way to say what was seen, a point scorer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, get_args

import msgspec

from burnish.boundary import Number, Settings
from burnish.errors import RewardError, UserError
from burnish.records import Evidence, Response, Reward, Status, Task, Visibility
from burnish.rewards.pool import Outcome, default_pool
from burnish.rewards.scorer import Scope, broken
from burnish.seeds import digest


class CheckConfig(Settings, frozen=True, kw_only=True, tag_field="kind"):
    """Base of every reward's settings; `kind` names the reward in a recipe file."""

    name: str = ""
    """What the reward is called in curves and samples; the kind by default."""
    weight: Number = 1.0
    """How much it counts in the total. 0 keeps it as a curve only."""
    category: str = ""
    """What kind of goal it serves, such as safety or format; for tables, never for the value."""
    roles: tuple[str, ...] = ()
    """Roles of the rollout that it scores, such as `["solver"]`; the others get 0. Empty: all. Of a
    reward inside another one it does not count."""

    @property
    def title(self) -> str:
        """The name, or the kind where none was given."""
        return self.name or str(self.__struct_config__.tag)


C = TypeVar("C", bound=CheckConfig)


class Check(ABC, Generic[C]):
    """A scorer that decides each response by a rule."""

    scope = Scope.POINT
    needs: frozenset[str] = frozenset()
    uses_answer: ClassVar[bool] = False
    """True where the rule reads the reference: its evidence is then oracle evidence."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Remember which settings the check belongs to: `class Length(RuleCheck[LengthConfig])`."""
        super().__init_subclass__(**options)
        for base in cls.__dict__.get("__orig_bases__", ()):
            for argument in get_args(base):
                if isinstance(argument, type) and _CHECKS.setdefault(argument, cls) is not cls:
                    raise TypeError(f"{argument.__name__} has its check: {_CHECKS[argument]}")

    def __init__(self, config: C) -> None:
        self.config, self.name, self.weight = config, config.title, config.weight
        if self.uses_answer and (field := getattr(config, "field", "")):
            self.needs = frozenset({field})

    @property
    def fingerprint(self) -> str:
        """Changes with the settings and with the source of the checks."""
        settings = msgspec.structs.replace(self.config, weight=1.0, category="", roles=())
        return digest(
            type(self).__name__, sources(Path(__file__).parent), msgspec.json.encode(settings)
        )

    @abstractmethod
    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]: ...

    def decided(self, value: float, saw: str, **more: Any) -> Reward:
        """A value, and the observation that it rests on."""
        return Reward(self.name, value, evidence=(self._evidence(saw),), **more)

    def abstained(self, reason: str) -> Reward:
        return Reward.failed(self.name, Status.ABSTAIN, reason)

    def undecided(self, outcome: Outcome, saw: str) -> Reward:
        """What a job of the pool that did not come back says about its response."""
        evidence = (self._evidence(saw, outcome.reason),)
        reason = f"{outcome.reason}; {saw}"
        return Reward.failed(self.name, outcome.status, reason, evidence=evidence)

    def _evidence(self, saw: str, error: str | None = None) -> Evidence:
        visibility = Visibility.ORACLE if self.uses_answer else Visibility.VISIBLE
        return Evidence(self.name, saw, visibility, error=error)


_CHECKS: dict[type, type[Check[Any]]] = {}


def check_of(config: CheckConfig) -> Check[Any]:
    return _CHECKS[type(config)](config)


class RuleCheck(Check[C]):
    """A check whose rule is quick and needs no other process."""

    @abstractmethod
    def judge(self, task: Task, response: Response) -> Reward: ...

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        return [self._judged(task, response) for response in responses]

    def _judged(self, task: Task, response: Response) -> Reward:
        try:
            return self.judge(task, response)
        except (UserError, RewardError):
            raise
        # Boundary: what breaks a rule in one response is no failure of its group.
        except Exception as error:
            return broken(self, error)


class IsolatedCheck(Check[C]):
    """A check that runs in killable processes, one message a group, a clock a response."""

    child: ClassVar[str]
    """Import path or file of the function that runs in the child."""

    async def isolated(self, jobs: Sequence[dict[str, Any]]) -> list[Outcome]:
        if not jobs:
            return []
        seconds: float = getattr(self.config, "timeout_s", 5.0)
        return await default_pool().run_async(self.child, jobs, timeout_s=seconds)


@cache
def sources(folder: Path) -> str:
    """One hash over the source files of a folder: a changed rule is a changed reward."""
    return digest(*(file.read_bytes() for file in sorted(folder.rglob("*.py"))))
