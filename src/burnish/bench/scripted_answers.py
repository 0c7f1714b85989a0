"""Right, wrong and empty answers to a task, without a model: what a recipe would make of them.

chosen, scripts = scripts_for(tasks, 3, answer_fields(scorer), "demonstration")
played = await play_all(chosen, scripts, scorer, tokenizer_for("smollm2"), sampling, deadline_s=30)
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from burnish.errors import UserError
from burnish.lm.base import VISUAL, Sampling
from burnish.records import Author, Reward, Span, Task, Trajectory
from burnish.rewards.scorer import Scorer, checked, leaves
from burnish.rollouts import Rollout, roll_out, single_turn
from burnish.tasks.base import TaskSet

if TYPE_CHECKING:
    from burnish.lm.tokenizer import Tokenizer


class ScriptedAnswer(NamedTuple):
    label: str
    text: str


class Played(NamedTuple):
    task: Task
    lines: list[ScriptedAnswer]
    trajectories: list[Trajectory]
    rewards: list[Reward]


class ModelTokenizer(NamedTuple):
    tokenizer: Tokenizer
    what: str


def answer_fields(scorer: Scorer) -> list[str]:
    """The task fields that the rewards compare answers with."""
    fields = [getattr(getattr(leaf, "config", None), "field", None) for leaf in leaves(scorer)]
    return [field for field in fields if field is not None]


def scripts_for(
    tasks: TaskSet, prompts: int, compared: Sequence[str], demonstration: str
) -> tuple[list[Task], list[list[ScriptedAnswer]]]:
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
) -> list[ScriptedAnswer]:
    """The expert's answer where the task has one, the right answer, a wrong one and an empty one.

    Right is what the rewards compare with; where they do not say, `answer` or the first label.
    `misplaced` is an expert's answer to another prompt: its form is right, its content wrong.
    """
    shown = task.fields.get(demonstration)
    expert = [ScriptedAnswer("expert", str(shown))] if shown else []
    if shown and misplaced and misplaced != str(shown):
        expert.append(ScriptedAnswer("misplaced", misplaced))
    labels = [*(["answer"] if "answer" in task.labels else []), *task.labels]
    label = next((name for name in (*compared, *labels) if task.fields.get(name) is not None), None)
    if label is None:
        return [*expert, ScriptedAnswer("some text", "I do not know."), ScriptedAnswer("empty", "")]
    answer = task.fields[label]
    right = str(answer[0] if isinstance(answer, list | tuple) and answer else answer)
    # Beside an expert's answer the bare label need not have the form that rewards ask for.
    named = "label alone" if expert else "right"
    bare = [] if right == str(shown) else [ScriptedAnswer(named, right)]
    return [
        *expert,
        *bare,
        ScriptedAnswer("wrong", wrong_answer(right)),
        ScriptedAnswer("empty", ""),
    ]


def wrong_answer(right: str) -> str:
    """An answer of the same form that is not the right one."""
    try:
        return str(int(right) + 1)
    except ValueError:
        pass
    if len(right) == 1 and right.isalpha():
        return "B" if right.upper() != "B" else "A"
    return "I do not know."


async def play_all(
    tasks: Sequence[Task],
    scripts: Sequence[list[ScriptedAnswer]],
    scorer: Scorer,
    found: ModelTokenizer,
    sampling: Sampling,
    deadline_s: float,
    rollout: Rollout = single_turn,
) -> list[Played]:
    """Let the scripted model answer every task, and score the answers.

    In a rollout of several turns it says the same at every turn; of several roles the first counts.
    """
    return [
        await _play(task, lines, scorer, found, sampling, deadline_s, rollout)
        for task, lines in zip(tasks, scripts, strict=True)
    ]


async def _play(
    task: Task,
    lines: list[ScriptedAnswer],
    scorer: Scorer,
    found: ModelTokenizer,
    sampling: Sampling,
    deadline_s: float,
    rollout: Rollout,
) -> Played:
    from burnish.lm.replay import ScriptedLM

    lm = ScriptedLM(lambda _, index: lines[index].text, tokenizer=found.tokenizer)
    own = Sampling(n=len(lines), max_tokens=sampling.max_tokens, stop=sampling.stop)
    completions = await lm.sample(task.messages, own)
    prompt = found.tokenizer.render_spans(task.messages)
    # A model ends its answer with an end token; without it an empty answer has no token.
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
    if rollout is not single_turn:
        for index, line in enumerate(lines):
            text = line.text
            again = ScriptedLM(lambda *_, said=text: said, tokenizer=found.tokenizer)
            once = msgspec.structs.replace(sampling, n=1)
            ((first, *_),) = await roll_out([(index, task)], again, once, rollout, seed=0)
            trajectories[index] = msgspec.structs.replace(first, id=f"{task.id}.{index}")
    responses = [trajectory.as_response() for trajectory in trajectories]
    rewards = await checked(scorer, task, responses, deadline_s=deadline_s)
    return Played(task, lines, trajectories, rewards)


def tokenizer_for(model: str) -> ModelTokenizer:
    """The model's own tokenizer where its folder is at hand, else one token a byte."""
    try:
        from burnish.lm.new_model import write_byte_tokenizer
        from burnish.lm.tokenizer import PROCESSOR_FILES, Tokenizer
    except ModuleNotFoundError as error:
        raise UserError(f"no '{error.name}'. Run: pip install 'burnish[torch]'") from error
    from burnish.store.blobs import cache_folder

    bare = model.removeprefix(VISUAL)
    folder: Path | None = None
    if model == f"{VISUAL}tiny":
        from burnish.lm.folder import find_folder

        folder = find_folder(model)
    elif bare == "smollm2":  # the cache of the embedded model where it was converted before
        made = [one for one in cache_folder().glob("smollm2*") if "-diffusion-" not in one.name]
        made = [one for one in made if ("-visual-" in one.name) == (bare != model)]
        folder = max(made, default=None)
    elif model != "tiny":
        folder = Path(model)
    if folder is not None:
        media = None
        if any((folder / name).is_file() for name in PROCESSOR_FILES):  # needs torch
            from burnish.lm.media_model import has_processor
            from burnish.lm.media_processor import MediaProcessor

            media = MediaProcessor.from_folder(folder) if has_processor(folder) else None
        return ModelTokenizer(Tokenizer.from_folder(folder, media), f"tokenizer of '{model}'")
    with tempfile.TemporaryDirectory() as scratch:
        write_byte_tokenizer(Path(scratch))
        tokenizer = Tokenizer.from_folder(Path(scratch))
    whose = "tokenizer of 'tiny'" if model == "tiny" else f"not '{model}', which is not at hand"
    return ModelTokenizer(tokenizer, f"one token a byte ({whose})")
