"""A judge in training is paid for its verdict, and for a rubric from which another judge decides.

    scorer = ProxyVerifiedRubric(proxy=FunctionProxy(my_function))

Proxy-GRM (arXiv 2603.16600). The proxy sees the question with its pictures, both responses and the rubric, never
the judge's evaluation or verdict, and the responses in the opposite order, so that a taste for a place is
not passed on. Where we differ: a proxy that fails gives no reward instead of 0, which would lie
between right and wrong; a rubric that names a winner counts as wrong; one that is missing or empty
too, for that is the judge's own fault.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from msgspec.structs import replace

from burnish.arguments import refused
from burnish.errors import RewardError
from burnish.records import Evidence, ImagePart, Response, Reward, Status, Task, Visibility
from burnish.rewards.checks.base import CheckConfig
from burnish.rewards.function import call_all
from burnish.rewards.judge_reward import BaseJudgeConfig, FunctionJudgeConfig, JudgeRewardConfig
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.prompting import (
    Question,
    as_user,
    check_template,
    fill,
    mark_for,
    wording,
)
from burnish.rewards.judges.proxy_grm import (
    WEIGHTS,
    Variant,
    accuracy_reward,
    compose,
    extract_rubric,
    format_ok,
    leaks,
    proxy_choice,
    variant_score,
    weights_ok,
    without_leaks,
)
from burnish.rewards.scorer import Scope, function_fingerprint, gather
from burnish.seeds import digest
from burnish.source import find_function

MOST_CACHED = 20_000
"""Answers that a reward remembers; the oldest goes first."""
GUARD = "leak guard"
"""Source of the evidence with what the guard found; sentences that name a winner follow, one a line."""
GUARDED = {
    "refuse": "names a winner: counted as wrong, and the proxy is not asked",
    "strip": "names a winner: these sentences are taken out before the proxy sees it",
    "off": "names a winner: the guard is off, so the proxy sees it as it is",
}
_LABELS: dict[Any, int] = {1: 1, 2: 2, "1": 1, "2": 2, "a": 1, "b": 2}
_BLANKS = ("request", "first", "second", "rubric")

Value = Literal["total", "accuracy", "proxy", "format", "leak", "weights"]


class TwoResponses(NamedTuple):
    """What a proxy is shown beside the rubric."""

    question: str
    first: str
    second: str
    pictures: tuple[ImagePart, ...] = ()
    """What the question is about, where it is about pictures."""

    def swapped(self) -> TwoResponses:
        return self._replace(first=self.second, second=self.first)


class ProxyReply(NamedTuple):
    choice: int | None
    """1 or 2, by what it was shown; None where it named both, none, or failed."""
    said: str = ""
    status: Status = Status.OK
    reason: str = ""


class Proxy(Protocol):
    """Anything that picks a response by a rubric."""

    @property
    def name(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    async def choose(self, pair: TwoResponses, rubric: str) -> ProxyReply: ...


class FunctionProxy:
    """Your own function of (question, first, second, rubric): 1, 2, None or a text that names one.

    One with a parameter `pictures` is also given the question's pictures, as parts of a message.
    """

    def __init__(
        self, function: Callable[..., Any], *, deadline_s: float = 30.0, **options: Any
    ) -> None:
        self.function, self.options, self.deadline_s = function, options, deadline_s
        self.name = getattr(function, "__name__", type(function).__name__)
        self._sees = "pictures" in inspect.signature(function).parameters

    @property
    def fingerprint(self) -> str:
        return digest(function_fingerprint(self.function), repr(sorted(self.options.items())))

    async def choose(self, pair: TwoResponses, rubric: str) -> ProxyReply:
        more = self.options | ({"pictures": pair.pictures} if self._sees else {})
        job = partial(self.function, *pair[:3], rubric, **more)
        (call,) = await call_all([job], self.deadline_s)
        if call.failure is not None:
            return ProxyReply(None, "", *call.failure)
        if isinstance(call.value, str):
            return ProxyReply(proxy_choice(call.value), call.value)
        if call.value not in (None, 1, 2) or isinstance(call.value, bool):
            raise RewardError(
                f"proxy '{self.name}' returned {call.value!r:.60}; expected 1, 2, None or a text"
            )
        return ProxyReply(call.value, str(call.value))


class ModelProxy:
    """A language model, in this process or behind a server, that is asked to follow the rubric."""

    def __init__(self, judge: JudgeModel, template: str | None = None) -> None:
        self.judge, self.name = judge, judge.name
        self.template = wording("proxy") if template is None else template
        check_template(self.template, _BLANKS, f"proxy '{self.name}'")

    @property
    def fingerprint(self) -> str:
        return digest("ModelProxy", self.judge.fingerprint, self.template)

    async def choose(self, pair: TwoResponses, rubric: str) -> ProxyReply:
        values = dict(zip(_BLANKS, (*pair[:3], rubric), strict=True))
        values["mark"] = mark_for(*values.values())
        asked = as_user(fill(self.template, values), pair.pictures, values["mark"])
        question = Question("proxy", asked)
        # A reply that names both or none is an answer: the rubric does not decide.
        reply = await self.judge.ask(question, lambda text: (proxy_choice(text), text))
        if reply.verdict is None:
            return ProxyReply(None, "", reply.status, reply.reason)
        return ProxyReply(*reply.verdict)


class _Proxied(NamedTuple):
    reward: float | None
    saw: str
    guard: str = ""
    """What the leak guard found; empty where it was not asked."""
    status: Status = Status.OK
    said: str = ""


class ProxyVerifiedRubric:
    """Accuracy, proxy and format of a judge's reply as one reward, or one of the three.

    `value="total"` is the weighted sum, or a published `variant`. With a proxy that failed it has no
    value, unless `missing="outcome"`: then accuracy and format alone. Recipes that normalise each
    reward on its own take the three values as three rewards, so that only the proxy's is missing.
    """

    scope = Scope.POINT

    def __init__(
        self,
        judge: ProxyRubricConfig | None = None,
        proxy: Proxy | Callable[..., Any] | None = None,
        weights: Sequence[float] = WEIGHTS,
        **settings: Any,
    ) -> None:
        """Further settings are those of `ProxyRubricConfig`."""
        config = replace(judge or ProxyRubricConfig(), weights=weights, **settings)
        self.config, self.name, self.weight = config, config.title, config.weight
        if callable(proxy) and not hasattr(proxy, "choose"):
            proxy = FunctionProxy(proxy)
        self.proxy: Any = proxy
        if config.asks_proxy and not hasattr(proxy, "choose"):
            raise refused(
                "proxy", proxy, "a function of (question, first, second, rubric), or a Proxy"
            )
        asked = {config.question, config.first, config.second} if config.asks_proxy else set()
        read = {config.label} if config.value in ("total", "accuracy", "proxy") else set()
        self.needs = frozenset(asked | read)
        self._known: dict[str, ProxyReply] = {}

    @property
    def fingerprint(self) -> str:
        proxy = self.proxy.fingerprint if self.config.asks_proxy else ""
        return digest("ProxyVerifiedRubric", proxy, repr(self.config))

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        field = self.config.label
        label: int | None = None
        if field in self.needs:
            given = task.fields.get(field)
            label = _LABELS.get(given) if isinstance(given, int | float | str) else None
            if label is None:
                why = f"the field '{field}' is {given!r:.40}, expected 1 or 2"
                return [Reward.failed(self.name, Status.ABSTAIN, why)] * len(responses)
        return await gather([partial(self._score, task, one, label) for one in responses])

    async def _score(self, task: Task, response: Response, label: int | None) -> Reward:
        text, config = response.text, self.config
        has_format = bool(format_ok(text, strict=config.strict))
        if label is None:
            rubric = extract_rubric.plain(text) or ""
            seen = {"format": has_format, "leak": leaks(rubric), "weights": weights_ok(rubric)}
            return Reward(self.name, float(bool(seen[config.value])))
        acc = accuracy_reward((text, label), lenient=config.lenient)
        if config.value == "accuracy":
            saw = f"verdict {'right' if acc > 0 else 'wrong'}"
            told = (Evidence(self.name, saw, visibility=Visibility.ORACLE),)
            return Reward(self.name, acc, evidence=told)
        found = _Proxied(None, "the proxy is not asked")
        if config.asks_proxy:
            found = await self._proxied(task, text, label)
        proxy = self.proxy.name if config.asks_proxy else ""
        # What became of the rubric, what the guard found, and the proxy's own words.
        said = ((self.name, found.saw), (GUARD, found.guard), (proxy, found.said))
        evidence = tuple(Evidence(source, words) for source, words in said if words)
        failed = partial(Reward.failed, self.name, found.status, found.saw, evidence=evidence)
        if config.value == "proxy":
            if found.reward is None:
                return failed()
            return Reward(self.name, found.reward, evidence=evidence)
        for_acc, for_prox, for_format = config.weights
        parts = [Reward("accuracy", acc, weight=for_acc)]
        if found.reward is not None:
            parts.append(Reward("proxy", found.reward, weight=for_prox))
        elif found.status is not Status.OK:
            parts.append(Reward.failed("proxy", found.status, found.saw, weight=for_prox))
        parts.append(Reward("format", float(has_format), weight=for_format))
        if found.status is not Status.OK and config.missing == "none":
            return failed(parts=tuple(parts))
        if config.variant:
            total = variant_score.plain(config.variant, acc, found.reward, has_format)
        else:
            total = compose.plain(
                "additive", has_format, config.weights, acc=acc, prox=found.reward
            )
        return Reward(self.name, float(total), parts=tuple(parts), evidence=evidence)

    async def _proxied(self, task: Task, text: str, label: int) -> _Proxied:
        config, rubric = self.config, extract_rubric.plain(text)
        if rubric is None:
            why = "no rubric: its block is missing, empty or not closed"
            return _Proxied(-1.0, why, "nothing to look at")
        named = [sentence.strip() for sentence in leaks(rubric)]
        guard = "\n".join([GUARDED[config.guard], *named]) if named else "names no winner"
        if named and config.guard == "refuse":
            return _Proxied(-1.0, f"the rubric names a winner: {named[0]!r:.120}", guard)
        if named and config.guard == "strip":
            rubric = without_leaks(rubric)
            if rubric is None:
                return _Proxied(-1.0, "the rubric does nothing but name a winner", guard)
        places = (config.question, config.first, config.second)
        question, first, second = (str(task.fields.get(name, "")) for name in places)
        media = (part for message in task.messages for part in message.media)
        pictures = tuple(part for part in media if isinstance(part, ImagePart))
        pair = TwoResponses(question, first, second, pictures)
        is_opposite = config.order == "opposite"
        pair = pair.swapped() if is_opposite else pair
        reply = await self._choose(pair, rubric)
        if reply.status is not Status.OK:
            return _Proxied(None, f"the proxy failed: {reply.reason}", guard, reply.status)
        choice = 3 - reply.choice if reply.choice and is_opposite else reply.choice
        right = "right" if choice == label else "wrong" if choice else "undecided"
        saw = f"from the rubric alone the proxy is {right}"
        saw += "; it saw the two responses in the opposite order" * is_opposite
        return _Proxied(1.0 if choice == label else -1.0, saw, guard, said=reply.said)

    async def _choose(self, pair: TwoResponses, rubric: str) -> ProxyReply:
        """Ask once for each pair and rubric; a failure is asked again next time."""
        texts = (*pair[:3], rubric, *(picture.sha256 for picture in pair.pictures))
        key = digest(*(text.encode("utf-8", "surrogatepass") for text in texts))
        if key in self._known:
            return self._known[key]
        reply: ProxyReply = await self.proxy.choose(pair, rubric)
        if reply.status is Status.OK:
            self._known[key] = reply
            if len(self._known) > MOST_CACHED:
                self._known.pop(next(iter(self._known)))
        return reply


class ProxyModelConfig(BaseJudgeConfig, frozen=True, tag="model"):
    """A language model as the proxy."""

    model: str
    """smollm2, tiny, a model folder, http://host:port/v1#model or replay:FILE.jsonl."""
    template: str | None = None
    """Another wording, with the blanks {request}, {first}, {second} and {rubric}."""
    max_tokens: int = 1024
    """Of one reply."""
    deadline_s: float = 120.0
    """Wall clock of one call."""
    cache: str = ""
    """JSON-lines file with replies that need not be paid for again."""
    record: str = ""
    """JSON-lines file to which every question and raw reply is appended."""
    api_key_env: str = ""
    """Name of the environment variable that holds the server's key."""
    concurrency: int = 16
    """Requests under way at a server at once."""

    def build(self, base: str | Path) -> ModelProxy:
        settings = {key: getattr(self, key) for key in self.__struct_fields__ if key != "template"}
        asked = JudgeRewardConfig(method="direct", repairs=0, **settings)
        return ModelProxy(asked.judge_model(base), self.template)


class ProxyRubricConfig(CheckConfig, frozen=True, tag="proxy_rubric"):
    """A judge's verdict, and what another judge makes of its rubric (Proxy-GRM): -2.5 to 3."""

    proxy: ProxyModelConfig | FunctionJudgeConfig | None = None
    """Who decides from the rubric alone: a model, or your function of (question, first, second,
    rubric). None where `value` needs none, or with a weight of 0 for the proxy."""
    value: Value = "total"
    """The sum; or one of accuracy (1, -1), proxy (1, -1), format (1, 0), leak (1, 0),
    weights (1 where the percentages of the rubric add up to 100)."""
    weights: tuple[float, float, float] = WEIGHTS
    """Of accuracy, proxy and format."""
    variant: Variant = 0
    """0 is the sum; 1 to 10 are the published ways to couple verdict and rubric."""
    missing: Literal["none", "outcome"] = "none"
    """With a proxy that failed: no value, or that of accuracy and format."""
    strict: bool = True
    """No white space between the three blocks."""
    lenient: bool = False
    """Read a verdict without its answer block, as published."""
    guard: Literal["refuse", "strip", "off"] = "refuse"
    """A rubric that names a winner counts as wrong, loses these sentences, or is let through."""
    order: Literal["opposite", "same"] = "opposite"
    """In which order the proxy sees the two responses."""
    question: str = "question"
    """Task field with what the responses answer."""
    first: str = "response_1"
    """Task field with response 1."""
    second: str = "response_2"
    """Task field with response 2."""
    label: str = "label"
    """Task field with the better one: 1, 2, "a" or "b"."""

    @property
    def asks_proxy(self) -> bool:
        """Whether its value depends on the proxy; without that none is asked."""
        is_counted = bool(self.variant or self.weights[1])
        return self.value == "proxy" or (self.value == "total" and is_counted)

    def check(self) -> None:
        if self.variant and self.weights != WEIGHTS:
            raise refused(
                "weights", self.weights, f"{WEIGHTS} with variant {self.variant}, which fixes them"
            )

    def build(self, base: str | Path) -> ProxyVerifiedRubric:
        proxy: Proxy | None = None
        if isinstance(self.proxy, ProxyModelConfig):
            proxy = self.proxy.build(base)
        elif self.proxy is not None:
            function = find_function(self.proxy.path, "proxy", Path(base))
            proxy = FunctionProxy(function, deadline_s=self.proxy.deadline_s, **self.proxy.options)
        return ProxyVerifiedRubric(self, proxy, self.weights)
