"""`burnish skill distill`: a better skill from trajectories, with a diff and a report."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from typer import Argument, Option

from burnish.cli.console import Reporter, complain, count, emit_json, one_line, say, warn
from burnish.cli.shared_options import ApiKeyEnv, AsJson, MaxTokens, Temperature, takes
from burnish.errors import UserError
from burnish.store.durable import make_folder
from burnish.texts import duration

if TYPE_CHECKING:
    from burnish.agents.trace2skill import Distilled, Pool, Roles, Settings
    from burnish.lm.budget import Budget
    from burnish.rewards.judges.judge_model import JudgeModel


Traces = Annotated[
    Path,
    Argument(metavar="TRACES", help="Trajectories as JSON lines, or a run's folder (runs/NAME)."),
]
Skill = Annotated[str, Option(metavar="FOLDER|ZIP|NAME", help="The skill to improve.")]
New = Annotated[str, Option(metavar="NAME", help="Begin with a draft by the model instead.")]
Out = Annotated[Path, Option(metavar="FOLDER", help="Where skill, diff, report and journal go.")]
CheckPath = Annotated[
    str,
    Option(
        "--check",
        metavar="FILE.py:NAME",
        help="(trace, fixed) -> bool: a failure counts only where the analyst's fix passes.",
    ),
]


class AuthorFlags(NamedTuple):
    """The flags that say who analyses and writes."""

    with_: Annotated[
        str,
        Option(
            "--with",
            metavar="MODEL",
            help="The model that analyses and writes: smollm2, a folder, http://host:port/v1#model.",
        ),
    ] = ""
    roles: Annotated[str, Option(metavar="FILE.py:NAME", help="Your own analysts instead.")] = ""
    option: Annotated[
        list[str] | None, Option(metavar="KEY=VALUE", help="tau=0.05, order=sequential, ...")
    ] = None
    pass_at: Annotated[float, Option(help="The score from which on a trajectory has passed.")] = 1.0
    temperature: Temperature = 0.6
    max_tokens: MaxTokens = 4096
    prices: Annotated[str, Option(metavar="IN,OUT", help="Dollars for a million tokens.")] = ""
    budget_usd: Annotated[float | None, Option(min=0.0)] = None
    api_key_env: ApiKeyEnv = ""

    def settings(self) -> Settings:
        """What `--option` says; who writes is named once."""
        import msgspec

        from burnish.agents.trace2skill import Settings
        from burnish.bench.open_judge import read_options

        if bool(self.with_) == bool(self.roles):
            raise UserError("give either --with MODEL or --roles FILE.py:NAME.")
        try:
            return msgspec.convert(read_options(self.option or ()), Settings)
        except msgspec.ValidationError as error:
            known = ", ".join(field.name for field in msgspec.structs.fields(Settings))
            raise UserError(f"--option: {error}; known are {known}, as KEY=VALUE.") from error

    def budget(self) -> Budget | None:
        """What a command may spend, all its models together; None without a limit."""
        from burnish.lm.budget import Budget

        return None if self.budget_usd is None else Budget(usd=self.budget_usd)

    def author(self, journal: Path, budget: Budget | None, seed: int = 0) -> JudgeModel:
        """The model behind every role; what the journal holds is not asked again."""
        from burnish.bench.open_judge import read_prices
        from burnish.lm.base import Sampling
        from burnish.lm.jobs import Limits
        from burnish.lm.named import open_lm
        from burnish.rewards.judges.judge_model import JudgeModel

        concurrency = self.settings().concurrency
        limits = Limits(concurrency=concurrency, deadline_s=900.0, attempt_s=600.0)
        lm = open_lm(
            self.with_,
            api_key_env=self.api_key_env or None,
            limits=limits if "://" in self.with_ else None,
            prices=read_prices(self.prices),
        )
        sampling = Sampling(temperature=self.temperature, max_tokens=self.max_tokens, seed=seed)
        return JudgeModel(lm, sampling=sampling, cache=journal, budget=budget)


@takes(AuthorFlags)
def distill(
    traces: Traces,
    flags: AuthorFlags,
    skill: Skill = "",
    new: New = "",
    out: Out = Path("distilled"),
    check: CheckPath = "",
    as_json: AsJson = False,
) -> int:
    """Distil trajectories into a skill: patches, a merge with support, checks, a diff.

    \b
      burnish skill distill traces.jsonl --skill skills/xlsx --out new --with http://localhost:8000/v1#m
      burnish skill distill runs/NAME --new my-skill --out new --with http://localhost:8000/v1#m
      burnish skill distill traces.jsonl --skill skills/xlsx --out new --roles my_roles.py:make
    """
    import anyio

    from burnish.agents.trace2skill import read_skill, read_traces
    from burnish.agents.trace2skill.report import reasons
    from burnish.agents.trace2skill.skill_files import carried_files, refuse_foreign, skill_name

    settings = flags.settings()
    if bool(skill) == bool(new):
        raise UserError("give either --skill FOLDER, to improve one, or --new NAME, to begin one.")
    if new and not re.fullmatch(r"[a-z0-9]+(?:-[a-z0-9]+)*", new):
        raise UserError(
            f"--new {new}: expected small letters, digits and hyphens, such as my-skill."
        )
    pool = read_traces(traces, pass_at=flags.pass_at)
    if not pool.all:
        said = ", ".join(reasons(reason for _, reason in pool.left_out)) or "nothing is in it"
        raise UserError(
            f"{traces}: no trajectory to learn from ({said}); expected a JSON object a line with id, "
            "instruction, messages and passed (true or false) or a score (--pass-at), or a run with "
            "samples."
        )
    files = read_skill(skill) if skill else None
    carried = carried_files(skill) if skill else {}
    name = new if files is None else skill_name(files)
    # Before anything is paid for.
    for place in (out / name, out / "rejected" / name):
        refuse_foreign(place, skill)
    make_folder(out)
    journal = out / "journal.jsonl"
    model = flags.author(journal, flags.budget()) if flags.with_ else None
    start = perf_counter()
    work = partial(_work, pool, settings, files=files, new=new, model=model, roles=flags.roles,
                   check=check, quiet=as_json)  # fmt: skip
    if not as_json:
        passed, failed = len(pool.passed), len(pool.failed)
        say(f"traces    {passed} passed, {failed} failed, {len(pool.left_out)} left out")
        if model is not None and not check:
            say("check     none: lessons rest on logs alone; --check FILE.py:NAME verifies them")
    found = anyio.run(work)
    cost = spent_of(model, journal, perf_counter() - start)
    author = flags.with_ or flags.roles
    return _tell(found, pool, out, author, cost, carried, as_json=as_json)


async def _work(
    pool: Pool,
    settings: Settings,
    *,
    files: Mapping[str, str] | None,
    new: str,
    model: JudgeModel | None,
    roles: str,
    check: str,
    quiet: bool,
) -> Distilled:
    from burnish.agents.trace2skill import LMRoles, distil
    from burnish.source import find_function

    players: Roles
    if model is None:
        players = find_function(roles, "roles", Path())()
    else:
        judge = _checker(find_function(check, "check", Path())) if check else None
        players = LMRoles(model, check=judge)
    if files is None:
        from burnish.agents.trace2skill import Refused
        from burnish.rewards.judges.skill_rm.package import MANUAL

        if not hasattr(players, "draft"):
            raise UserError("--new needs roles that can draft; give --skill FOLDER instead.")
        tasks = list(dict.fromkeys(one.instruction for one in pool.all))[:8]
        text = await players.draft(
            tasks, new, f"Guide for tasks such as: {tasks[0][:200]}" if tasks else new
        )
        if isinstance(text, Refused):
            raise UserError(f"no draft of '{new}': {text.reason}.")
        files = {MANUAL: text}
    with Reporter(quiet=quiet) as report:

        def progress(stage: str, done: int, total: int) -> None:
            report(stage if total else f"{stage}, level {done}", done, total or done)

        return await distil(pool, files, players, settings, progress=progress)


def _checker(function: Any) -> Any:
    import inspect

    async def checked(trace: Any, fixed: str) -> bool | None:
        found = function(trace, fixed)
        value = await found if inspect.isawaitable(found) else found
        return None if value is None else bool(value)

    return checked


def spent_of(model: JudgeModel | None, journal: Path, seconds: float) -> dict[str, Any]:
    """What the calls have cost, earlier processes included, and the time of this one."""
    from burnish.lm.call_log import read_calls

    found: dict[str, Any] = {"seconds": round(seconds, 3)}
    if model is None:
        return found
    calls = read_calls(journal) if journal.is_file() else []
    done = [one for call in calls for one in call.completions]
    found |= {"calls": len(calls), "calls_now": model.spent.calls, "cached": model.spent.cached}
    found["prompt_tokens"] = sum(one.prompt_tokens for one in done)
    found["completion_tokens"] = sum(one.completion_tokens for one in done)
    usd = sum(one.cost_usd for one in done)
    return found | ({"usd": round(usd, 6)} if usd else {})


def _tell(
    found: Distilled,
    pool: Pool,
    out: Path,
    model: str,
    cost: Mapping[str, Any],
    carried: Mapping[str, Any],
    *,
    as_json: bool,
) -> int:
    from burnish.agents.trace2skill import markdown, report_of, write_skill
    from burnish.agents.trace2skill.distillation import NOTHING, REFUSED, REJECTED, UNREAD
    from burnish.agents.trace2skill.report import reasons
    from burnish.agents.trace2skill.skill_files import skill_name
    from burnish.view.pages.skills import skill_page

    name = skill_name(found.before)
    report = report_of(found, pool, skill=name, model=model, cost=cost)
    write_skill(found.files, out / name, carried)
    if found.candidate is not None:
        write_skill(found.candidate, out / "rejected" / name, carried)
    texts = {
        "skill.diff": found.diff,
        "report.json": json.dumps(report, ensure_ascii=False, indent=1) + "\n",
        "report.md": markdown(report),
        "report.html": skill_page(report),
    }
    for file, text in texts.items():
        # Half a character that a model wrote is shown by its number.
        (out / file).write_bytes(text.encode("utf-8", "backslashreplace"))
    for line in found.warnings:
        warn(line)
    if as_json:
        emit_json(report | {"out": str(out)})
    else:
        kept = 0 if found.status in (NOTHING, REFUSED, UNREAD) else len(found.edits)
        words = {
            NOTHING: "unchanged: nothing to learn",
            REFUSED: "unchanged: no edit was kept",
            UNREAD: "unchanged: no reply of the model could be read",
            REJECTED: "unchanged: rejected by its checks",
        }
        say(f"skill     {name}: {words.get(found.status, f'{kept} edits')}", "bold")
        say(f"edits     {kept} made, {len(found.dropped)} left out; look: burnish view {out}")
        for title, given in (
            ("left out", [one.reason for one in found.dropped]),
            ("no patch", [reason for _, reason, _ in found.refused]),
            ("no trace", [reason for _, reason in pool.left_out]),
        ):
            if given:
                say(f"{title}  {'; '.join(one_line(line) for line in reasons(given))}")
        tokens = cost.get("prompt_tokens", 0) + cost.get("completion_tokens", 0)
        money = f", ${cost['usd']:.4f}" if cost.get("usd") else ""
        calls = f"{cost.get('calls', 0)} calls, {count(tokens)} tokens{money}, "
        say(f"spent     {calls if 'calls' in cost else ''}{duration(cost['seconds'])}")
        say(f"written   {out / name}")
    if found.status == REJECTED:
        complain("\n".join(one_line(line) for line in found.problems))
        return 3
    return 3 if found.status == UNREAD else 0
