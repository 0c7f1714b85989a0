"""How often a run will ask its judges, before it starts.

Each judge is asked about one group of made-up answers, as long as answers may be, with a model that
says nothing and counts; a judge that asks on only after a reply (`usual_reply`: MARCH's Checkers, EVPV)
hears its usual one, of one claim. So the numbers are the most that a step takes without repairs:
answers that are equal, questions that are in the cache and gates in front of a judge save some.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from burnish.bench.open_judge import REPLY_TOKENS, MeasuringLM
from burnish.config.schema import Config, DiffusionPolicyTrain, PolicyTrain
from burnish.lm.budget import CHARACTERS_A_TOKEN, Budget, Forecast, forecast
from burnish.lm.call_log import judges_built
from burnish.records import Response, Task
from burnish.rewards.config import (
    FirstDecisiveConfig,
    GateConfig,
    RewardConfig,
    ScoreJudgeConfig,
    VersusConfig,
    build,
)
from burnish.rewards.judge_reward import JudgeRewardConfig, LMJudgeConfig
from burnish.rewards.judges.proxy_rubric import ProxyModelConfig, ProxyRubricConfig
from burnish.rewards.scorer import checked

WRAPPED = ("scorer", "judge")
"""Attributes by which scorers hold others."""
JudgedConfig = JudgeRewardConfig | VersusConfig | ProxyRubricConfig
"""Rewards that ask a language model themselves."""
LanguageJudge = JudgeRewardConfig | LMJudgeConfig | ProxyModelConfig


class JudgeCalls(NamedTuple):
    reward: str
    model: str
    group: int
    one_order: int
    """The same if pairs were asked about in one order; equal to `group` where they are."""
    step: Forecast
    run: Forecast
    evaluations: int
    has_cache: bool
    is_replayed: bool
    warning: str
    """Where the judge's budget will end before the run does, or its rate outlast a deadline."""


class _Asked(NamedTuple):
    calls: int
    prompt_tokens: float
    reply_tokens: int
    prices: Any


async def count_judge_calls(
    config: Config, task: Task, *, base: str | Path = "."
) -> list[JudgeCalls]:
    """One entry for each reward that asks a language model; `task` is one of the run's."""
    found = []
    for reward in config.rewards:
        for judged, judge in judge_rewards(reward):
            found.append(await _count(config, judged, judge, task, base))
    return found


def judge_rewards(reward: RewardConfig) -> Iterator[tuple[JudgedConfig, LanguageJudge]]:
    """The rewards inside a reward that ask a language model, and whom they ask."""
    if isinstance(reward, JudgeRewardConfig):
        if reward.model:  # an `atp` without one asks nobody
            yield reward, reward
    elif isinstance(reward, ProxyRubricConfig):
        if isinstance(reward.proxy, ProxyModelConfig) and reward.asks_proxy:
            yield reward, reward.proxy
    elif isinstance(reward, VersusConfig):
        judge = reward.judge
        if isinstance(judge, JudgeRewardConfig | LMJudgeConfig):
            yield reward, judge
        elif isinstance(judge, ScoreJudgeConfig):
            for _, inner in islice(judge_rewards(judge.reward), 1):
                yield reward, inner
    elif isinstance(reward, GateConfig):
        yield from judge_rewards(reward.hard)
        yield from judge_rewards(reward.then)
    elif isinstance(reward, FirstDecisiveConfig):
        for part in reward.rewards:
            yield from judge_rewards(part)


async def _count(
    config: Config, reward: JudgedConfig, judge: LanguageJudge, task: Task, base: str | Path
) -> JudgeCalls:
    samples, prompts = config.rollout.samples, config.rollout.prompts
    tokens = config.rollout.max_tokens
    asked = await _group(reward, task, base, samples, tokens)
    once = asked
    if not isinstance(reward, ProxyRubricConfig) and reward.both_orders:
        one_order: JudgedConfig = replace(reward, both_orders=False)
        if isinstance(reward, JudgeRewardConfig):
            one_order = replace(reward, both_orders=False, rule=None)
        once = await _group(one_order, task, base, samples, tokens)
    held_out = await _group(reward, task, base, 1, tokens)
    # Before the first step, after the last, and every so many between.
    every = config.evaluation.every
    rounds = 2 + ((config.steps - 1) // every if every else 0)
    in_evaluations = held_out.calls * rounds * config.evaluation.prompts
    is_policy = isinstance(config.train, PolicyTrain | DiffusionPolicyTrain)
    in_step = asked.calls * prompts if is_policy else 0
    predicted = partial(
        forecast,
        prompt_tokens=asked.prompt_tokens,
        completion_tokens=asked.reply_tokens,
        prices=asked.prices,
    )
    run = predicted(in_step * config.steps + in_evaluations)
    model = f"{judge.url}#{judge.model}" if isinstance(judge, LMJudgeConfig) else judge.model
    limits = Budget(calls=None)
    if isinstance(judge, JudgeRewardConfig):
        limits = Budget(calls=judge.budget.calls, tokens=judge.budget.tokens, usd=judge.budget.usd)
    warning = run.warning(limits)
    rate = getattr(judge, "requests_per_minute", None)
    if not warning and rate is not None and is_policy:
        deadline_s: float | None = getattr(judge, "deadline_s", None)
        warning = _rate_warning(config, deadline_s, rate, asked.calls)
    return JudgeCalls(
        reward=reward.title,
        model=model,
        group=asked.calls,
        one_order=once.calls,
        step=predicted(in_step),
        run=run,
        evaluations=in_evaluations,
        has_cache=bool(getattr(judge, "cache", "")),
        is_replayed=model.startswith("replay:"),
        warning=warning,
    )


def _rate_warning(config: Config, deadline_s: float | None, rate: float, group: int) -> str:
    """Where the rate of requests makes groups wait longer than a deadline allows."""
    calls = group * min(config.rollout.prompts, config.rollout.score_concurrency)
    # A sliding minute: the first `rate` calls begin at once, the next ones a minute later.
    wait_s = 60 * (math.ceil(calls / rate) - 1)
    limits = {"rollout.score_timeout_s": config.rollout.score_timeout_s}
    if deadline_s is not None:
        limits["deadline_s of the judge"] = deadline_s
    short = [f"{name} is {limit:g}" for name, limit in limits.items() if limit <= wait_s]
    if not short:
        return ""
    return (
        f"{calls:,} calls of groups scored together at requests_per_minute={rate:g} take {wait_s:,} s "
        f"or more, and {' and '.join(short)}: late answers have no value. Set more than {wait_s:,} s."
    )


async def _group(
    reward: JudgedConfig,
    task: Task,
    base: str | Path,
    samples: int,
    answer_tokens: int,
) -> _Asked:
    counting = MeasuringLM("counting")
    reply, prices = REPLY_TOKENS, None
    with judges_built() as judges:
        scorer = build(reward, base=base)
    for judge in judges:
        made: Any = judge
        prices = getattr(made.lm, "prices", None)
        reply = min(REPLY_TOKENS, made.sampling.max_tokens)
        made.lm = counting
        made.cache = made.record = None
        made.budget, made.repairs = Budget(), 0
    counting.reply = usual_reply(scorer)
    length = max(1, answer_tokens) * CHARACTERS_A_TOKEN
    texts = [f"{k} {'word ' * length}"[: max(length, 8)] for k in range(samples)]
    if isinstance(reward, ProxyRubricConfig):  # only a rubric of a labelled pair is asked about
        texts = [f"<rubric>{text}</rubric>" for text in texts]
        task = replace(task, fields={**task.fields, reward.label: 1})
    await checked(scorer, task, [Response(f"answer-{k}", text) for k, text in enumerate(texts)])
    calls = len(counting.characters)
    mean = sum(counting.characters) / CHARACTERS_A_TOKEN / calls if calls else 0.0
    return _Asked(calls, mean, reply, prices)


def usual_reply(scorer: object) -> str:
    """What a scorer, or one inside it, must hear to go on asking; empty where silence is enough."""
    inside = (*getattr(scorer, "children", ()), *(getattr(scorer, n, None) for n in WRAPPED))
    own = getattr(scorer, "usual_reply", "")
    return own or next(filter(None, (usual_reply(one) for one in inside if one is not None)), "")


def calls_text(found: JudgeCalls, steps: int) -> str:
    if found.is_replayed:
        return f"reward '{found.reward}' is answered from {found.model}: no calls"
    one = f" ({found.one_order} in one order)" if found.one_order != found.group else ""
    held = f", {found.evaluations:,} of them in evaluations" if found.evaluations else ""
    saved = "what the cache holds is not asked again" if found.has_cache else "no cache is set"
    money = f", ${found.run.usd:.2f}" if found.run.usd else ""
    return (
        f"reward '{found.reward}' asks {found.model}: up to {found.group:,} calls a group{one}, "
        f"{found.step.calls:,} a step, {found.run.calls:,} for {steps} step{'s' * (steps != 1)}{held} "
        f"(about {found.run.tokens:,} tokens{money}); {saved}, repairs and refills come on top"
    )


def all_texts(found: Sequence[JudgeCalls], steps: int) -> list[str]:
    """A line for each judge, and one where its budget will end early."""
    lines = []
    for one in found:
        lines.append(calls_text(one, steps))
        if one.warning:
            lines.append(f"reward '{one.reward}': {one.warning}")
    return lines
