"""A judge that works in turns: a session with tools, played like every other rollout.

    trajectory = await play(judge, env, about=(task.id, a.id, b.id), limits=Limits(turns=7))
    trajectory.status, env.replies

The environment (`burnish.rollouts.Env`) opens the conversation and answers each reply; turns,
tokens, time and money are limited as in training and evaluation, and what fails outside is a
status. Each reply is one question to the `JudgeModel`, with its budget, cache and record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from burnish.lm.base import Completion, Prompt, Sampling, Scores
from burnish.lm.failures import failure_of
from burnish.lm.meter import estimate_tokens
from burnish.records import Message, Task, Trajectory
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.prompting import Question, Reply
from burnish.rollouts import Env, EnvRollout, Limits, env_rollout, roll_out


class JudgeEnv(Env, Protocol):
    """An environment for judges: it also says what the next question is for, and gets the raw
    replies."""

    @property
    def kind(self) -> str: ...

    @property
    def replies(self) -> list[Reply]: ...


class JudgeLM:
    """A judge model as the model of a session."""

    def __init__(self, judge: JudgeModel, env: JudgeEnv, about: tuple[str, ...], vote: int) -> None:
        self.judge, self.env, self.about, self.vote = judge, env, about, vote

    @property
    def name(self) -> str:
        return self.judge.name

    async def sample(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        """One reply; the judge's own sampling holds, so that equal questions are equal calls."""
        messages = tuple(item for item in prompt if isinstance(item, Message))
        question = Question(self.env.kind, messages, self.about, self.vote)
        heard = await self.judge.ask(question, str)
        self.env.replies.extend(heard.replies)
        if heard.verdict is None:
            raise failure_of(heard.status, heard.reason)
        reply = heard.replies[-1]
        return [
            Completion(
                reply.text,
                finish=reply.finish,
                model=reply.model,
                prompt_tokens=reply.prompt_tokens,
                completion_tokens=reply.completion_tokens or estimate_tokens(reply.text),
                cost_usd=0.0 if reply.is_cached else reply.cost_usd,
            )
        ]

    async def score(
        self, prompt_ids: Sequence[int], response_ids: Sequence[int], *, top_k: int = 0
    ) -> Scores:
        raise TypeError("a judge is asked for replies, never for scores")


async def play(
    judge: JudgeModel,
    env: JudgeEnv,
    *,
    about: tuple[str, ...],
    limits: Limits,
    vote: int = 0,
) -> Trajectory:
    """Let the judge work in the environment until that is done or a limit is reached."""
    lm = JudgeLM(judge, env, about, vote)
    rollout = env_rollout(lambda: env, settings=EnvRollout(path="given", limits=limits))
    # The judged task's own limits are for those who answer it, so the rollout gets a bare one.
    task = Task("/".join(about) or "judgement", ())
    # The session's bound on all turns together; a single reply is bounded by the judge's sampling.
    most = limits.tokens or limits.turns * judge.sampling.max_tokens
    ((trajectory,),) = await roll_out([(0, task)], lm, Sampling(max_tokens=most), rollout, 0)
    return trajectory
