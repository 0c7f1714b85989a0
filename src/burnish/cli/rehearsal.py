"""`burnish try`: a few prompts through a scripted model, so that nothing is a surprise later.

Everything but the model is real: the data, the chat template, the tokenizer where it can be had
without loading a model, the rewards, the advantages and the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import anyio
from rich.text import Text

from burnish.cli.authors import coloured, counts, legend
from burnish.cli.console import one_line, out, say
from burnish.cli.rewards import reward_tree
from burnish.cli.terms import Group, print_terms
from burnish.cli.tokenizers import Found, tokenizer_for
from burnish.cli.words import resolve
from burnish.lm.base import Sampling
from burnish.lm.scripted import ScriptedLM
from burnish.records import Author, Message, Reward, Span, Task, Trajectory
from burnish.rewards.config import build_all
from burnish.rewards.judge_reward import JudgeRewardConfig
from burnish.rewards.scorer import Scorer, bind_check, checked, leaves
from burnish.tasks.base import TaskSet
from burnish.tasks.config import build as build_tasks
from burnish.texts import safe


class Line(NamedTuple):
    """One answer of the script."""

    label: str
    text: str


class Played(NamedTuple):
    """One task, its answers as trajectories, and their rewards."""

    task: Task
    lines: list[Line]
    trajectories: list[Trajectory]
    rewards: list[Reward]


def rehearse(words: Sequence[str], prompts: int) -> int:
    """Play the prompts and print what happened to each."""
    asked = resolve(words)
    config = asked.resolved.value
    tasks = build_tasks(config.task, config.run.seed, asked.root)
    scorer = build_all(config.rewards, base=asked.root)
    bind_check(scorer, tasks.fields)
    found = tokenizer_for(config.model.path)
    say(f"recipe {asked.recipe}: task '{tasks.name}', scripted model, {found.what}", style="bold")
    for note in tasks.notes:
        say(f"data: {note}")
    for reward in config.rewards:
        if isinstance(reward, JudgeRewardConfig) and "://" in reward.model:
            say(
                f"judge: reward '{reward.title}' asks {reward.model}. Where no server answers there, "
                "it has a status instead of a value and every advantage is 0.",
                style="yellow",
            )
    sampling = Sampling(max_tokens=config.rollout.max_tokens, stop=config.rollout.stop)
    chosen, scripts = scripts_for(tasks, prompts, answer_fields(scorer), config.experts.field)
    deadline_s = config.rollout.score_timeout_s
    played = anyio.run(partial(play_all, chosen, scripts, scorer, found, sampling, deadline_s))
    out.print(legend())
    for number, play in enumerate(played, 1):
        _print_play(number, play, found)
    groups = [Group([line.label for line in p.lines], p.trajectories, p.rewards) for p in played]
    print_terms(groups, config, found.tokenizer)
    return 0


async def play_all(
    tasks: Sequence[Task],
    scripts: Sequence[list[Line]],
    scorer: Scorer,
    found: Found,
    sampling: Sampling,
    deadline_s: float,
) -> list[Played]:
    """Let the scripted model answer every task, and score the answers."""
    return [
        await _play(task, lines, scorer, found, sampling, deadline_s)
        for task, lines in zip(tasks, scripts, strict=True)
    ]


async def _play(
    task: Task,
    lines: list[Line],
    scorer: Scorer,
    found: Found,
    sampling: Sampling,
    deadline_s: float,
) -> Played:

    def speak(_: Sequence[Message], index: int) -> str:
        return lines[index].text

    lm = ScriptedLM(speak, tokenizer=found.tokenizer)
    own = Sampling(n=len(lines), max_tokens=sampling.max_tokens, stop=sampling.stop)
    completions = await lm.sample(task.messages, own)
    prompt = found.tokenizer.render_spans(task.messages)
    # A model ends its answer with a token of its own; without it an empty answer has no token.
    end = found.tokenizer.eos_ids[:1]
    trajectories = []
    for index, completion in enumerate(completions):
        ids = completion.token_ids + (end if completion.finish.value == "stop" else ())
        answer = Span(Author.MODEL, ids, (0.0,) * len(ids), trainable=True)
        trajectories.append(
            Trajectory(
                id=f"{task.id}.{index}",
                task_id=task.id,
                group=task.id,
                spans=(*prompt, answer),
                text=completion.text,
                finish=completion.finish,
            )
        )
    responses = [trajectory.as_response() for trajectory in trajectories]
    rewards = await checked(scorer, task, responses, deadline_s=deadline_s)
    return Played(task, lines, trajectories, rewards)


def answer_fields(scorer: Scorer) -> list[str]:
    """The task fields that the rewards compare answers with."""
    fields = [getattr(getattr(leaf, "config", None), "field", None) for leaf in leaves(scorer)]
    return [field for field in fields if field is not None]


def scripts_for(
    tasks: TaskSet, prompts: int, compared: Sequence[str], demonstration: str
) -> tuple[list[Task], list[list[Line]]]:
    """The first tasks and a script for each; what an expert says to one is misplaced at another."""
    found = tasks.sample(prompts + 1)
    # Of a set that has no more the last prompt meets the first one's answer.
    others = [*found[1:], found[0]]
    scripts = [
        script_for(task, compared, demonstration, str(other.fields.get(demonstration) or ""))
        for task, other in zip(found, others, strict=True)
    ]
    return found[:prompts], scripts[:prompts]


def script_for(
    task: Task,
    compared: Sequence[str] = (),
    demonstration: str = "demonstration",
    misplaced: str = "",
) -> list[Line]:
    """The expert's answer where the task has one, the right answer, a wrong one and an empty one.

    Right is what the rewards compare with; where they do not say, `answer` or the first label.
    `misplaced` is an expert's answer to another prompt: its form is right, its content wrong.
    """
    shown = task.fields.get(demonstration)
    expert = [Line("expert", str(shown))] if shown else []
    if shown and misplaced and misplaced != str(shown):
        expert.append(Line("misplaced", misplaced))
    labels = [*(["answer"] if "answer" in task.labels else []), *task.labels]
    names = (name for name in (*compared, *labels) if task.fields.get(name) is not None)
    label = next(names, None)
    if label is None:
        return [*expert, Line("some text", "I do not know."), Line("empty", "")]
    answer = task.fields[label]
    right = str(answer[0] if isinstance(answer, list | tuple) and answer else answer)
    # Beside an expert's answer the bare label need not have the form that rewards ask for.
    named = "label alone" if expert else "right"
    bare = [] if right == str(shown) else [Line(named, right)]
    return [*expert, *bare, Line("wrong", wrong_answer(right)), Line("empty", "")]


def wrong_answer(right: str) -> str:
    """An answer of the same form that is not the right one."""
    try:
        return str(int(right) + 1)
    except ValueError:
        pass
    if len(right) == 1 and right.isalpha():
        return "B" if right.upper() != "B" else "A"
    return "I do not know."


def _print_play(number: int, play: Played, found: Found) -> None:
    task = play.task
    say()
    say(f"prompt {number}   task {task.id}", style="bold")
    fields = "  ".join(f"{k}={one_line(str(v))[:60]}" for k, v in task.fields.items())
    say(f"fields {fields}", style="bright_black")
    prompt = play.trajectories[0].spans[:-1]
    out.print(coloured(prompt, found.tokenizer))
    say(f"tokens {counts(prompt)}; loss mask 0 on all of them", style="bright_black")
    for line, trajectory, reward in zip(play.lines, play.trajectories, play.rewards, strict=True):
        answer = trajectory.spans[-1]
        text = Text(f"{line.label:>9}: ", style="bright_black")
        text.append(coloured([answer], found.tokenizer))
        text.append(f"   {_tokens(answer, found)}", style="bright_black")
        if trajectory.finish.value != "stop":
            text.append(f" finish {trajectory.finish.value}", style="yellow")
        out.print(text)
        out.print(reward_tree(reward))


def _tokens(answer: Span, found: Found) -> str:
    """The trained tokens one by one, with the mask they get."""
    ids = answer.token_ids
    shown = " ".join(
        f"{safe(found.tokenizer.decode([id_], skip_special=False))!r}" for id_ in ids[:24]
    )
    more = " ..." if len(ids) > 24 else ""
    return f"{len(ids)} tokens, loss mask 1: {shown}{more}"
