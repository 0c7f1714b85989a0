"""`burnish skill evolve`: a skill that is improved on a recipe's tasks, and kept only if it is not worse."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec.structs import replace
from typer import Argument, Option

from burnish.cli.completion import complete_models, complete_words
from burnish.cli.console import Reporter, emit_json, interval, number, one_line, say, warn
from burnish.cli.entry import STOPPED
from burnish.cli.shared_options import AsJson, takes
from burnish.cli.skill_distill import AuthorFlags, Out
from burnish.errors import UserError
from burnish.store.durable import make_folder
from burnish.texts import counted

if TYPE_CHECKING:
    from burnish.agents.trace2skill import Evolved, Roles, Settings
    from burnish.agents.trace2skill.evolution import Change
    from burnish.api.measure import EvaluationSetup
    from burnish.records import Task

Words = Annotated[
    list[str],
    Argument(
        metavar="RECIPE KEY=VALUE",
        help="Whose tasks, rewards and rollout are played, with settings to change.",
        autocompletion=complete_words,
    ),
]
Improved = Annotated[
    str,
    Option(
        metavar="FOLDER|ZIP|NAME", help="The skill to improve; it stands in the system message."
    ),
]
Player = Annotated[
    str,
    Option(
        metavar="MODEL",
        help="Who plays the tasks; the recipe's model where left out.",
        autocompletion=complete_models,
    ),
]


@takes(AuthorFlags)
def evolve(
    words: Words,
    skill: Improved,
    flags: AuthorFlags,
    out: Out = Path("evolved"),
    model: Player = "",
    tasks: Annotated[int, Option(min=2, help="How many tasks are played.")] = 40,
    seeds: Annotated[int, Option(min=1, help="Distillations to choose from.")] = 3,
    share: Annotated[float, Option(min=0.0, max=0.9, help="Of the tasks: held out.")] = 0.2,
    play_temperature: Annotated[float, Option(min=0.0, help="Of the model that plays.")] = 1.0,
    part: Annotated[str, Option(metavar="NAME", help="Which reward decides; the total.")] = "",
    as_json: AsJson = False,
) -> int:
    """Improve a skill on a recipe's tasks: play, distil, accept it only if held-out tasks do not suffer.

    Each seed plays the tasks with the skill and distils what it saw; the best of the new skills plays
    the held-out tasks beside the old one. Killed at any moment, the same command goes on without
    playing or asking anything twice.

    \b
      burnish skill evolve my.toml --skill skills/tables --out new --with http://localhost:8000/v1#m
      burnish skill evolve my.toml --skill skills/tables --out new --roles my_roles.py:make --model tiny
    """
    import anyio

    from burnish.agents.trace2skill import LMRoles, held_out, read_skill
    from burnish.agents.trace2skill.skill_files import carried_files, refuse_foreign, skill_name
    from burnish.api.measure import EvaluationSetup
    from burnish.config.recipes import resolve
    from burnish.lm.named import open_lm
    from burnish.source import find_function

    settings = flags.settings()
    files = read_skill(skill)
    refuse_foreign(out / skill_name(files), skill)
    asked = resolve(words)
    if not asked.resolved.value.rewards:
        raise UserError(
            f"recipe '{asked.recipe}' has no rewards; expected [[rewards]], which say whether a task "
            "was passed."
        )
    test = EvaluationSetup.of(asked, part)
    chosen = {task.id: task for task in test.tasks.sample(tasks)}
    if len(chosen) < 2:
        raise UserError(
            f"task '{test.tasks.name}' has {counted(len(chosen), 'task')}; expected 2 or more."
        )
    aside = sum(held_out(list(chosen), share))
    if not 0 < aside < len(chosen):
        raise UserError(
            f"--share {share:g} holds out {aside} of {counted(len(chosen), 'task')}; expected 1 or more "
            "to learn from and 1 or more to test on. Change --share or --tasks."
        )
    make_folder(out)
    budget = flags.budget()

    def roles(seed: int) -> Roles:
        """Those of one seed: the user's own, or a model with a journal of its own."""
        if flags.roles:
            own: Roles = find_function(flags.roles, "roles", Path())()
            return own
        return LMRoles(flags.author(out / f"journal-{seed}.jsonl", budget, seed))

    lm = open_lm(model or asked.resolved.value.model.path, api_key_env=flags.api_key_env or None)
    games, most = [0], 2 * (seeds * (len(chosen) - aside) + aside)
    with Reporter() as report:

        def tell(trace: Any) -> None:
            games[0] += 1
            report(f"playing and distilling, {most} games", games[0], most)

        work = partial(
            _work, test, chosen, files, lm, roles, settings, out / "plays.jsonl", seeds=seeds,
            share=share, temperature=play_temperature, pass_at=flags.pass_at, tell=tell,
        )  # fmt: skip
        found = anyio.run(work)
    return _tell(found, out, skill_name(files), carried_files(skill), len(chosen), as_json=as_json)


async def _work(
    test: EvaluationSetup,
    tasks: dict[str, Task],
    files: dict[str, str],
    lm: Any,
    roles: Callable[[int], Roles],
    settings: Settings,
    journal: Path,
    *,
    seeds: int,
    share: float,
    temperature: float,
    pass_at: float,
    tell: Callable[[Any], None],
) -> Evolved:
    from burnish.agents.trace2skill import TaskAgent, evolve

    agent = TaskAgent(
        lm,
        test.scorer,
        replace(test.sampling, temperature=temperature),
        rollout=test.rollout,
        part=test.part,
        pass_at=pass_at,
        deadline_s=test.deadline_s,
        journal=journal,
        on_play=tell,
    )
    async with agent:
        limit = settings.concurrency
        found = await evolve(
            files, tasks, agent, roles, settings, seeds=seeds, share=share, limit=limit
        )
    if agent.failures:
        (reason, _), failed = agent.failures.most_common(1)[0], agent.failures.total()
        warn(f"{counted(failed, 'game')} could not be played or scored: {one_line(reason)}")
    return found


def _tell(found: Evolved, out: Path, name: str, carried: Any, count: int, *, as_json: bool) -> int:
    from burnish.agents.trace2skill import unified_diff, write_skill
    from burnish.agents.trace2skill.distillation import UNREAD
    from burnish.agents.trace2skill.report import reasons

    before = found.runs[0].before
    diff = unified_diff(before, found.files)
    choice = found.choice
    unread = reasons(reason for run in found.runs for _, reason, _ in run.refused)
    report = {
        "skill": name,
        "accepted": found.accepted,
        "tasks": count,
        "before": found.before,
        "rates": list(found.rates),
        "seeds": [run.status for run in found.runs],
        "no_patch": unread,
        "changes": [_record(one) for one in found.changes],
        "held_out": None if choice is None else choice._asdict() | _record(found.held),
        "diff": diff,
    }
    write_skill(found.files, out / name, carried)
    (out / "skill.diff").write_bytes(diff.encode("utf-8", "backslashreplace"))
    (out / "evolve.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for line in dict.fromkeys(line for run in found.runs for line in run.warnings):
        warn(line)
    has_played = any(rate is not None for rate in found.rates)
    has_read = any(run.status != UNREAD for run in found.runs)
    code = 0 if has_played and has_read else STOPPED
    if as_json:
        emit_json(report | {"out": str(out)})
        return code
    for seed, (run, change) in enumerate(zip(found.runs, found.changes, strict=True)):
        say(f"seed {seed}    {run.status}; tasks it learnt from: {_change(change)}")
    if unread:
        say(f"no patch  {'; '.join(map(one_line, unread))}")
    if choice is None:
        say("skill     unchanged: no seed found anything to change", "bold")
    else:
        word = "accepted: not worse" if choice.accepted else "not accepted: the old one stays"
        say(f"held out  {_change(found.held)}")
        say(
            f"          {choice.better} passed by the new skill alone, {choice.worse} by the old one "
            "alone"
        )
        say(f"skill     {word}", "bold")
    say(f"written   {out / name}")
    return code


def _change(change: Change | None) -> str:
    if change is None:
        return "none was played with both skills"
    told = f"passes {number(change.before)} -> {number(change.after)}"
    if change.before == change.after:
        return f"{told}, no difference"
    told += f", {interval(change.difference, signed=True)}, p {number(change.p)}"
    return f"{told}: no difference beyond noise" if change.is_noise else told


def _record(change: Change | None) -> dict[str, Any]:
    if change is None:
        return {"difference": None}
    return {
        "before": change.before,
        "after": change.after,
        "difference": change.difference._asdict(),
        "p": change.p,
        "is_noise": change.is_noise,
    }
