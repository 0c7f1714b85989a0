"""A judge as a recipe file names it: `kind = "judge"`; without an anchor a judge of `kind = "versus"`.

[[rewards]]
kind = "judge"
with = "openrs"
model = "http://127.0.0.1:8000/v1#my-judge"
anchor = "reference"
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec
from msgspec.structs import replace

from burnish.boundary import Count, NonNegative, Positive, PositiveInt, Seconds, Seed, Settings
from burnish.errors import UserError
from burnish.lm.base import LM, Sampling, model_key
from burnish.records import MediaPart, Response, Reward, Task
from burnish.rewards.checks.base import CheckConfig
from burnish.rewards.combine import Combination, OrderRule, can_vote, compare, next_vote
from burnish.rewards.judges.prompting import (
    Media,
    Question,
    Unreadable,
    as_user,
    fill,
    wording,
)
from burnish.rewards.pair_judges import (
    CallablePairJudge,
    ExplainingJudge,
    OfScorer,
    Pair,
    PairVerdict,
    all_evidence,
    sight_of,
)
from burnish.rewards.pairs import parse_pair_scores
from burnish.rewards.scorer import Scope, Scorer, checked
from burnish.seeds import derive, digest
from burnish.source import find_function
from burnish.texts import whole_characters

if TYPE_CHECKING:
    from burnish.rewards.judges.judge_model import JudgeModel


class Renamed(Combination):
    """A scorer under the name that a recipe gives it."""

    def __init__(self, scorer: Scorer, name: str) -> None:
        super().__init__(name, (scorer,), scorer.scope)

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        rewards = await checked(self.children[0], task, responses)
        return [replace(reward, name=self.name) for reward in rewards]


class BudgetConfig(Settings, frozen=True, kw_only=True):
    """What a judge may spend in one run, all its continuations together; no limit by default.

    Each of several processes has a budget of its own.
    """

    calls: Count | None = None
    """Most calls."""
    tokens: Count | None = None
    """Most tokens, read and written."""
    usd: NonNegative | None = None
    """Most dollars, by the prices given."""


class JudgeRewardConfig(CheckConfig, frozen=True, tag="judge"):
    """A language model as a judge: above 0 where the anchor is beaten, [0, 1] for a point judge.

    Against an anchor the value lies in [-1, 1], save for `openrs` with the rule "mean" or in one
    order: its own scores, within its option `clip` (4 by default).
    """

    method: str = msgspec.field(name="with")
    """direct, point, list, openrs, skill_rm, genrm, ...: `burnish.rewards.judges.build.JUDGES`."""
    model: str
    """smollm2, tiny, a model folder, http://host:port/v1#model or replay:FILE.jsonl."""
    options: dict[str, object] = msgspec.field(default_factory=dict)
    """The method's own settings."""
    anchor: str = ""
    """Task field with the response that a pair judge compares with."""
    both_orders: bool = True
    """Ask about each pair in both orders."""
    rule: OrderRule | None = None
    """How two orders become one value: votes, mean, strict or abstain; the method's own by default.

    "abstain" gives no value where the orders disagree. A judge of `versus` leaves this to
    `inconsistent` there.
    """
    temperature: NonNegative = 0.0
    """Of the judge's sampling; 0 is greedy."""
    max_tokens: PositiveInt | None = None
    """Of one reply; by default 1024, or what the method needs."""
    seed: Seed = 0
    """Seed of the judge's sampling."""
    repairs: Count = 1
    """How often an unreadable reply is asked for once more."""
    deadline_s: Seconds = 120.0
    """Wall clock of one call."""
    cache: str = ""
    """JSON-lines file with replies that need not be paid for again."""
    record: str = ""
    """JSON-lines file to which every question and raw reply is appended."""
    budget: BudgetConfig = BudgetConfig()
    """What the judge may spend."""
    api_key_env: str = ""
    """Name of the environment variable that holds the server's key."""
    concurrency: PositiveInt = 16
    """Requests under way at a server at once."""
    requests_per_minute: Positive | None = None
    """Most requests a minute that a server is sent; no limit by default."""
    tokens_per_minute: Positive | None = None
    """Most that a server is sent; no limit by default."""
    retries: Count = 4
    """Further requests after one that failed outside, a hedge included."""
    hedge_after_s: Seconds | None = None
    """Send a second copy of a request that takes longer than this; the first answer counts."""
    structured: Literal["auto", "on", "off"] = "auto"
    """Ask the server to force the JSON form of the verdict (`response_format`), for the judges whose
    reply is one object: direct, point and list. "auto" stops where the server refuses or ignores it.
    """
    media: Literal["send", "mark"] = "send"
    """Images and sounds of the task: sent to the judge, or "mark": only marks in the text, for a model
    that reads text alone and is told so."""
    media_count: PositiveInt = 16
    """Most images and sounds in one request to a server."""
    media_mb: Positive = 20.0
    """Most megabytes that they have together."""
    prompt_usd: NonNegative = 0.0
    """Price in dollars for a million tokens that the judge reads."""
    completion_usd: NonNegative = 0.0
    """Prices in dollars for a million tokens."""

    def build(self, base: str | Path) -> Scorer:
        """The scorer: pointwise, a pair judge against its anchor."""
        from burnish.rewards.judges.build import build_judge

        judge = self.judge_model(base)
        scorer = build_judge(
            self.method,
            judge,
            self.options,
            both_orders=self.both_orders,
            rule=self.rule,
            anchor=self.anchor or None,
        )
        judge.shows_media = getattr(scorer, "shows_media", True)
        if scorer.scope is Scope.PAIR:
            raise UserError(
                f"reward '{self.title}': judge '{self.method}' compares two responses; give "
                "`anchor`, the task field to compare with, or use it as the judge of "
                'kind = "versus", which compares within the group'
            )
        return Renamed(scorer, self.name) if self.name not in ("", scorer.name) else scorer

    def build_pair(self, base: str | Path) -> ScorerJudge:
        """The judge of `versus`, which sees to both orders itself and draws its own references."""
        from burnish.rewards.judges.build import build_judge

        if self.anchor:
            raise UserError(
                f"judge '{self.method}' of versus: got anchor '{self.anchor}', expected none"
            )
        scorer = build_judge(self.method, self.judge_model(base), self.options, both_orders=False)
        return ScorerJudge(scorer)

    def judge_model(self, base: str | Path) -> JudgeModel:
        """The model with its cache, record and budget; nothing is asked or loaded yet."""
        from burnish.lm.budget import Budget
        from burnish.lm.named import open_lm
        from burnish.rewards.judges.judge_model import GREEDY, JudgeModel

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
            media=self.media,
        )

    def _server(self) -> dict[str, Any]:
        if "://" not in self.model:
            return {} if self.model.startswith("replay:") else {"late": True}
        from burnish.lm.http import Prices

        prices = Prices(prompt_usd=self.prompt_usd, completion_usd=self.completion_usd)
        return {**server_limits(self), "structured": self.structured, "prices": prices}


def server_limits(own: JudgeRewardConfig | LMJudgeConfig) -> dict[str, Any]:
    """Key, rates and sizes of the requests to a judge's server."""
    from burnish.lm.jobs import Limits
    from burnish.lm.wire import MediaLimits

    rates = ("concurrency", "requests_per_minute", "tokens_per_minute", "retries", "hedge_after_s")
    return {
        "api_key_env": own.api_key_env or None,
        "limits": Limits(**{key: getattr(own, key) for key in rates}),
        "media": MediaLimits(count=own.media_count, megabytes=own.media_mb),
    }


def _placed(model: str, root: Path) -> str:
    """A folder or a file that is named relative to the recipe, as a path from here."""
    if model.startswith("replay:"):
        path = root / model.removeprefix("replay:")
        return f"replay:{path}" if path.is_file() else model
    return str(root / model) if "://" not in model and (root / model).is_dir() else model


class LMPairJudge(ExplainingJudge):
    """A model that is asked for two scores; a failed call or an unreadable reply is no verdict.

    The reply must end in `<scores>a, b</scores>`. The same pair asked again in one call is another
    vote, with another seed.
    """

    template = wording("pair_scores", Path(__file__).parent / "prompts")

    def __init__(
        self,
        lm: LM,
        *,
        temperature: NonNegative = 0.6,
        max_tokens: int = 2048,
        seed: int = 0,
        concurrency: int = 32,
        media: Media = "send",
    ) -> None:
        """`media`: send the images and sounds of the task, or only marks that stand for them."""
        from burnish.rewards.judges.judge_model import JudgeModel

        sampling = Sampling(temperature=temperature, max_tokens=max_tokens)
        self.model = JudgeModel(lm, sampling=sampling, repairs=0, seed=seed, media=media)
        self.name = lm.name
        self._parts: tuple[MediaPart, ...] = ()
        self.concurrency = concurrency

    @property
    def fingerprint(self) -> str:
        settings = (repr(self.model.sampling), str(self.model.seed))
        media = () if self.model.media == "send" else (self.model.media,)
        return digest(*model_key(self.model.lm), self.template, *settings, *media)

    def about(self, task: Task, responses: Sequence[Response]) -> Self:
        """The same judge, with this task's images and sounds in view."""
        if not task.media:
            return self
        seeing = copy(self)
        seeing._parts = task.media
        return seeing

    async def judge_pair(self, pair: Pair, vote: int) -> PairVerdict:
        mark = digest(*(text.encode("utf-8", "surrogatepass") for text in pair))
        blanks = ("request", "first", "second", "mark")
        text = fill(self.template, dict(zip(blanks, (*pair, mark), strict=True)))
        question = Question(
            "pair scores",
            as_user(whole_characters(text), self._parts, mark),
            vote=vote,
            seed=derive(self.model.seed, mark, vote),
        )
        reply = await self.model.ask(question, _read)
        said = reply.replies[-1].text.strip() if reply.replies else ""
        if reply.verdict is None:
            return PairVerdict.none(reply.status, reply.reason, said)
        return PairVerdict(reply.verdict, said)


def _read(text: str) -> tuple[float, float]:
    scores = parse_pair_scores.plain(text)
    if scores is None:
        raise Unreadable("no <scores>a, b</scores> with two numbers from 0 to 10 in the reply")
    return scores[0], scores[1]


class BaseJudgeConfig(Settings, frozen=True, kw_only=True, tag_field="kind"):
    """Base of every judge's settings; `kind` names the judge in a recipe file."""


class FunctionJudgeConfig(BaseJudgeConfig, frozen=True, tag="function"):
    """Your own function of (prompt, a, b), or of a list of such pairs; gives two scores a pair."""

    path: str
    """Your function: `my_file.py:name` or `package.module:name`."""
    options: dict[str, object] = msgspec.field(default_factory=dict)
    """Fixed arguments of the function."""
    deadline_s: Seconds = 30.0
    """Wall clock of one call."""

    def build(self, base: str | Path) -> CallablePairJudge:
        """The function, looked up relative to `base`."""
        function = find_function(self.path, "judge", Path(base))
        return CallablePairJudge(function, options=self.options, deadline_s=self.deadline_s)


class LMJudgeConfig(BaseJudgeConfig, frozen=True, tag="lm"):
    """A model behind an OpenAI-style server, asked for criteria, evidence and two scores."""

    url: str
    """Such as `http://127.0.0.1:8000/v1`."""
    model: str
    """The name under which the server serves it."""
    api_key_env: str = ""
    """Name of the environment variable that holds the key; empty where none is needed."""
    temperature: NonNegative = 0.6
    """Of the judge's sampling; 0 is greedy."""
    max_tokens: PositiveInt = 2048
    """Most tokens of one reply."""
    seed: Seed = 0
    """Seed of the judge's sampling."""
    concurrency: PositiveInt = 32
    """Questions of one group under way at once."""
    requests_per_minute: Positive | None = None
    """Most requests a minute that the server is sent; no limit by default."""
    tokens_per_minute: Positive | None = None
    """Most that the server is sent; no limit by default."""
    retries: Count = 4
    """Further requests after one that failed outside, a hedge included."""
    hedge_after_s: Seconds | None = None
    """Send a second copy of a request that takes longer than this; the first answer counts."""
    media: Literal["send", "mark"] = "send"
    """Images and sounds of the task: sent to the judge, or "mark": only marks in the text, for a model
    that reads text alone and is told so."""

    media_count: PositiveInt = 16
    """Most images and sounds in one request to the server."""
    media_mb: Positive = 20.0
    """Most megabytes that they have together."""

    def build(self) -> LMPairJudge:
        """The judge; no request is sent before the first question."""
        from burnish.lm.http import OpenAILM

        server = OpenAILM(self.url, self.model, **server_limits(self))
        own = {key: getattr(self, key) for key in ("temperature", "max_tokens", "seed", "media")}
        return LMPairJudge(server, concurrency=self.concurrency, **own)


class ScorerJudge(OfScorer):
    """A pair scorer as a judge of pairs; v and -v are the two scores.

    A scorer with `for_vote(n)` is asked as another voter where the same pair comes again; any other
    one repeats itself, and `versus` takes one vote of it.
    """

    def __init__(self, scorer: Scorer) -> None:
        if scorer.scope is not Scope.PAIR:
            raise UserError(
                f"judge of pairs: '{scorer.name}' has scope {scorer.scope.value}; expected pair. "
                'A reward of single texts is used with judge = { kind = "score", ... }'
            )
        super().__init__(scorer)

    @property
    def repeats_itself(self) -> bool:
        """True where further votes on a pair would be the first one again."""
        return not can_vote(self.scorer)

    async def judge_pair(self, pair: Pair, vote: int) -> PairVerdict:
        prompt, first, second = pair
        scorer = next_vote(self.scorer, vote) if vote else self.scorer
        shown = self.response_of(first), self.response_of(second)
        reward, _ = await compare(scorer, self.task_of(prompt), *shown)
        words = [evidence.observation for evidence in all_evidence(reward)]
        said = "\n\n".join(words) or reward.reason
        if reward.value is None:
            return PairVerdict.none(reward.status, reward.reason, said)
        scores = (reward.value, 0.0 - reward.value)
        return PairVerdict(scores, said, visibility=sight_of(reward))
