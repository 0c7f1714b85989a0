"""One line each: score an answer with a reward, let a model judge answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from burnish.api.explained import Explained
from burnish.api.models import opened, wait_for
from burnish.api.settings import as_reward
from burnish.arguments import as_text, as_texts, refused
from burnish.bench.items import Item, choice_of, responses_of
from burnish.bench.judging import rewards_of
from burnish.boundary import PositiveInt, public
from burnish.config.loading import load
from burnish.lm.base import Sampling
from burnish.records import Message, Task
from burnish.rewards.combine import OrderRule
from burnish.rewards.config import RewardConfig, build
from burnish.rewards.judges.build import build_judge
from burnish.rewards.judges.judge_model import GREEDY, JudgeModel
from burnish.rewards.scorer import Scorer, bind_check, checked


def score(
    reward: Any, prompt: str | Sequence[Message], response: str | Sequence[str], **fields: Any
) -> Any:
    """What an answer earns and why; a list of answers gives a list, scored as one group.

    `reward` is a function, a name such as `numeric`, a table or a `Scorer`; `fields` are what it
    needs beside the answer.

    >>> found = score("numeric", "What is 3 + 4?", "It is 7.", answer="7")
    >>> found.value, found.status
    (1.0, 'ok')
    >>> [one.value for one in score(lambda text: len(text), "Hi", ["a", "abc"])]
    [1.0, 3.0]
    """
    texts = [response] if isinstance(response, str) else as_texts("response", response)
    task = Task("score", as_messages(prompt), fields)
    scorer = as_scorer(reward)
    bind_check(scorer, fields)
    rewards = wait_for(partial(checked, scorer, task, responses_of("score", texts)))
    found = [Explained(task.prompt, t, one) for t, one in zip(texts, rewards, strict=True)]
    return found[0] if isinstance(response, str) else found


class _OneReward(Struct, frozen=True, forbid_unknown_fields=True):
    """A config of one reward, so that its mistakes are reported as those of a recipe are."""

    reward: RewardConfig


def as_scorer(reward: Any) -> Scorer:
    """The scorer of a function, a name, a table or a scorer."""
    if isinstance(reward, Scorer):
        return reward
    config = load(_OneReward, None, settings={"reward": as_reward(reward)}).value.reward
    return build(config, base=Path.cwd())


def as_messages(prompt: Any) -> tuple[Message, ...]:
    """A prompt as chat messages: a text, or a list of messages or `{role, content}` dicts."""
    if isinstance(prompt, str):
        return (Message("user", prompt),)
    turns: Any = prompt if isinstance(prompt, list | tuple) and prompt else [None]
    if all(isinstance(turn, Message) for turn in turns):
        return tuple(turns)
    if not all(isinstance(turn, Mapping) and {"role", "content"} <= turn.keys() for turn in turns):
        raise refused("prompt", prompt, "a text or a list of chat messages {role, content}")
    from burnish.lm.wire import read_content
    from burnish.tasks.media_columns import CheckedBlobs

    return tuple(
        Message(
            str(turn["role"]),
            read_content(turn["content"], CheckedBlobs())
            if isinstance(turn["content"], list)
            else as_text("content", turn["content"]),
        )
        for turn in turns
    )


@dataclass(frozen=True)
class Judgement:
    """What a judge says of answers to one prompt."""

    judge: str
    answers: tuple[Explained, ...]
    """Each answer with its value and the judge's words."""
    best: tuple[int, ...] | None
    """Positions of the best answers, several for a tie; None where the judge gave no verdict."""

    @property
    def values(self) -> tuple[float | None, ...]:
        """The value of each answer; None where it has none."""
        return tuple(answer.value for answer in self.answers)

    def __repr__(self) -> str:
        best = "no verdict" if self.best is None else f"best {', '.join(map(str, self.best))}"
        shown = ", ".join("none" if v is None else f"{v:g}" for v in self.values)
        reasons = [a.reward.reason for a in self.answers if a.value is None and a.reward.reason]
        why = f"; {reasons[0]}" if reasons else ""
        return f"<{self.judge}: {best}; values {shown}{why}>"


@public
def judge(
    prompt: object,
    *responses: str,
    model: object,
    method: str = "direct",
    both_orders: bool = True,
    rule: OrderRule | None = None,
    max_tokens: PositiveInt | None = None,
    options: Mapping[str, object] | None = None,
    **fields: object,
) -> Judgement:
    """Let a language model compare two or more answers, or rate one with a method such as `point`.

    `model` is what `generate` takes; `method` is `direct`, `point`, `openrs`, `skill_rm`, `genrm`
    and so on (`burnish judge --help`), with its own `options`. `rule` makes one verdict of the two
    orders: `votes`, `mean`, `strict`, or `abstain`, which gives none where they disagree.

    >>> from burnish.lm import ScriptedLM
    >>> model = ScriptedLM(['{"reasons": "Seven is right.", "winner": "A"}'])
    >>> judge("What is 3 + 4?", "7", "8", model=model, both_orders=False)
    <direct@scripted: best 0; values 1, -1>
    """
    messages = as_messages(prompt)
    if not responses:
        raise refused("responses", responses, "at least one answer to judge")
    sampling = Sampling(temperature=0.0, max_tokens=max_tokens) if max_tokens else GREEDY

    async def work() -> Judgement:
        async with opened(model) as lm:
            judge_model = JudgeModel(lm, sampling=sampling)
            scorer = build_judge(method, judge_model, options, both_orders=both_orders, rule=rule)
            item = Item("judge", messages, responses_of("judge", responses), shown=fields)
            rewards = await rewards_of(scorer, item)
            asked = item.task().prompt
            answers = tuple(
                Explained(asked, response.text, reward)
                for response, reward in zip(item.responses, rewards, strict=True)
            )
            best = choice_of([reward.value for reward in rewards])
            return Judgement(f"{method}@{lm.name}", answers, best)

    return wait_for(work)
