"""One call that searches a better system prompt for a task: `burnish.optimise_prompt`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from burnish.agents.prompt import (
    JoinedProposers,
    ModelProposer,
    PromptResult,
    PromptSettings,
    Proposer,
    Slices,
    WorkedExamples,
    optimise,
    prompt_report,
)
from burnish.api.measure import EvaluationSetup, asked_tasks
from burnish.api.models import open_model, opened, wait_for
from burnish.boundary import PositiveInt, Seed, public
from burnish.errors import UserError
from burnish.lm.base import LM
from burnish.records import Task
from burnish.store.durable import write_file
from burnish.tasks.base import TaskSet, content_key
from burnish.texts import counted

EXAMPLES = "examples"
"""The proposer that needs no model."""
FEWEST_CONFIRM = 5
"""Tasks to which the confirm slice may shrink; fewer could confirm nothing."""
MOST_LOOKED_AT = 100
"""Times as many training tasks as needed are looked at for different questions."""


@public
def optimise_prompt(
    model: object,
    task: object,
    *,
    proposer: object = None,
    prompt: str | None = None,
    rewards: object = None,
    rounds: int = 3,
    candidates: int = 4,
    shown: PositiveInt = 32,
    trial: PositiveInt = 96,
    confirm: PositiveInt = 96,
    alpha: float = 0.05,
    seed: Seed = 0,
    max_tokens: PositiveInt | None = None,
    columns: Mapping[str, str] | None = None,
    part: str = "",
    out: Path | None = None,
    tell: Callable[[str], None] | None = None,
) -> PromptResult:
    """Search a better system prompt; accepted by a paired test and confirmed on held-out tasks.

    `task` is what `evaluate` takes. `proposer` is a model, `"examples"` (worked examples from solved
    tasks, no model needed) or an object with `propose`; by default the model itself and examples
    take turns. `out` is a file for the prompt; the report and the journal from which a killed search
    goes on lie beside it.

    >>> found = optimise_prompt("tiny", "tiny", proposer="examples", rounds=1, candidates=1,
    ...                         shown=2, trial=2, confirm=2, max_tokens=2)
    >>> found.prompt == found.start
    True
    """
    sizes = (shown, trial, confirm)
    asked, is_whole = asked_tasks(model, task, rewards, columns)
    test = EvaluationSetup.of(asked, part, max_tokens)
    settings = PromptSettings(
        rounds=rounds, candidates=candidates, alpha=alpha, seed=seed, sampling=test.sampling
    )
    slices = slices_of(test.tasks, *sizes, has_held_out=not is_whole)
    shrunk = shrunk_slices(slices, sizes)
    if shrunk and tell is not None:
        tell(shrunk)

    async def work() -> PromptResult:
        async with opened(model) as lm:
            return await optimise(
                lm,
                slices,
                test.scorer,
                _proposer(proposer, lm),
                settings,
                prompt=prompt,
                rollout=test.rollout,
                part=test.part,
                journal=None if out is None else beside(out, ".journal.jsonl"),
                tell=tell,
            )

    result = wait_for(work)
    if shrunk:
        result = msgspec.structs.replace(result, problems=(shrunk, *result.problems))
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_file(out, f"{result.prompt}\n".encode())
        write_file(beside(out, ".report.md"), prompt_report(result).encode())
    return result


def beside(path: Path, ending: str) -> Path:
    """`prompt.report.md` beside `prompt.txt`."""
    return path.with_name(path.stem + ending)


def _proposer(given: Any, lm: LM) -> Proposer:
    if given is None:
        return JoinedProposers(WorkedExamples(), ModelProposer(lm))
    if given == EXAMPLES:
        return WorkedExamples()
    if hasattr(given, "propose"):
        own: Proposer = given
        return own
    try:
        return ModelProposer(open_model(given))
    except UserError as error:
        raise UserError(f"proposer: {error}") from error


def slices_of(
    tasks: TaskSet, shown: int, trial: int, confirm: int, *, has_held_out: bool = True
) -> Slices:
    """Three slices without a common question; the third from the held-out side where there is one."""
    seen: set[str] = set()

    def new(task: Task) -> bool:
        key = content_key(task.messages)
        is_new = key not in seen
        seen.add(key)
        return is_new

    held = [t for t in tasks.held_out(confirm) if new(t)] if has_held_out else []
    wanted = shown + trial + (0 if held else confirm)
    most = tasks.train_size or wanted * MOST_LOOKED_AT
    found: list[Task] = []
    for index in range(min(most, wanted * MOST_LOOKED_AT)):
        if len(found) == wanted:
            break
        if new(task := tasks.train(index)):
            found.append(task)
    if len(found) < wanted:
        # Too few tasks: the slices keep their shares.
        share = len(found) / wanted
        shown, trial = max(1, int(shown * share)), max(1, int(trial * share))
    slices = Slices(
        found[:shown], found[shown : shown + trial], held or found[shown + trial :][:confirm]
    )
    if not all(slices):
        raise UserError(
            f"task '{tasks.name}' has {len(found)} different training tasks and {len(held)} held-out "
            "ones; expected at least one for each of the three slices."
        )
    if len(slices.confirm) < min(confirm, FEWEST_CONFIRM):
        raise UserError(
            f"task '{tasks.name}' leaves {counted(len(slices.confirm), 'task')} to confirm a prompt "
            f"on; expected at least {FEWEST_CONFIRM}. Give more rows, or a larger held-out share."
        )
    return slices


def shrunk_slices(slices: Slices, sizes: Sequence[int]) -> str:
    """Which slices have fewer tasks than were asked for, in one line; empty where none."""
    found = [
        f"{name} {len(own)} of {asked}"
        for (name, own), asked in zip(slices._asdict().items(), sizes, strict=True)
        if len(own) < asked
    ]
    return f"fewer tasks than asked for: {', '.join(found)}" if found else ""
