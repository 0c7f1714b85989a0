"""Better system prompts by propose, try, accept: nothing is accepted on noise.

Failures on the *shown* slice are what a proposer sees. Each candidate answers the *trial* slice with
the same seeds as the present prompt and takes its place only where a paired test says so, at `alpha`
divided by the number of all tries. The winner meets the first prompt once more on the *confirm* slice,
which nothing has touched before. Every finished part stands in a journal, so that a search that was
killed comes to the same end; what failed outside is not in it: the next start asks again.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from burnish.activity import advance, waiting_for
from burnish.agents.prompt.proposers import (
    Candidate,
    Case,
    Proposer,
    Situation,
    case_of,
    proposed,
    worth_trying,
)
from burnish.arguments import same_length
from burnish.bench.evaluation import evaluate_slots, summarise
from burnish.bench.statistics import Estimate, paired_difference, sign_flip
from burnish.boundary import Draws, Settings, Share, public
from burnish.digest import code_digest
from burnish.errors import UserError
from burnish.lm.base import LM, Sampling, model_key
from burnish.lm.budget import metered
from burnish.lm.lines import LineFile
from burnish.records import Message, Reward, Status, Task
from burnish.rewards.scorer import Scorer, fingerprint
from burnish.rollouts import Rollout, single_turn
from burnish.seeds import derive, digest
from burnish.texts import counted


class Paired(Struct, frozen=True):
    before: float
    after: float
    difference: Estimate
    p: float
    """Two-sided, of a sign-flip test over the pairs."""
    dropped: int
    """Pairs without a value on either side."""
    lost: int
    """Answers that had a value before and have none after."""

    def is_better(self, level: float) -> bool:
        """Whether the second is better at a level, and could be scored wherever the first was."""
        return self.difference.value > 0 and self.p <= level and self.lost == 0

    def __str__(self) -> str:
        change = self.difference
        return (
            f"{self.before:.3f} to {self.after:.3f}, {change.value:+.3f} "
            f"[{change.low:+.3f}, {change.high:+.3f}], p {self.p:.2g}"
        )


@public
def compare_marks(before: Sequence[float | None], after: Sequence[float | None]) -> Paired | None:
    """The paired comparison of two lists of marks; None where no pair has two values.

    >>> found = compare_marks([0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1])
    >>> found.difference.value, found.p
    (1.0, 0.03125)
    >>> compare_marks([1, 0], [1, 0]).p
    1.0
    """
    same_length("after", after, len(before), "marks before")
    pairs = [(a, b) for a, b in zip(before, after, strict=True) if a is not None and b is not None]
    if not pairs:
        return None
    old, new = [a for a, _ in pairs], [b for _, b in pairs]
    lost = sum(a is not None and b is None for a, b in zip(before, after, strict=True))
    return Paired(
        math.fsum(old) / len(old),
        math.fsum(new) / len(new),
        paired_difference.plain(old, new),
        sign_flip.plain([b - a for a, b in pairs]),
        len(before) - len(pairs),
        lost,
    )


@public
def system_prompt(tasks: Sequence[Task]) -> str:
    """The system prompt that all tasks share; empty where they have none or several.

    >>> system_prompt([Task("t", (Message("system", "Be brief."), Message("user", "q")))])
    'Be brief.'
    """
    found = {next((m.text for m in task.messages[:1] if m.role == "system"), "") for task in tasks}
    return found.pop().strip() if len(found) == 1 else ""


@public
def with_system_prompt(task: Task, prompt: str) -> Task:
    """The task under another system prompt; under none where it is empty.

    >>> task = Task("t", (Message("system", "old"), Message("user", "q")))
    >>> [m.content for m in with_system_prompt(task, "new").messages]
    ['new', 'q']
    """
    own = [message for message in task.messages[:1] if message.role == "system"]
    first = (Message("system", prompt),) if prompt else ()
    return msgspec.structs.replace(task, messages=(*first, *task.messages[len(own) :]))


PART = 32
"""Tasks that are answered between two entries of the journal."""


class PromptSettings(Settings, frozen=True, kw_only=True):
    rounds: Draws = 3
    candidates: Draws = 4
    alpha: Share = 0.05
    """Chance that anything is accepted where nothing is better."""
    seed: int = 0
    sampling: Sampling = Sampling(temperature=0.0)

    @property
    def level(self) -> float:
        """The level of one try: Bonferroni over all tries that there may be."""
        return self.alpha / (self.rounds * self.candidates)


class Slices(NamedTuple):
    """The three parts of the tasks; no question is in two of them."""

    shown: Sequence[Task]
    trial: Sequence[Task]
    confirm: Sequence[Task]


class Tried(Struct, frozen=True):
    round: int
    candidate: Candidate
    paired: Paired | None
    is_accepted: bool
    """Whether it took the present prompt's place."""
    verdict: str


class Spending(Struct):
    answers: int = 0
    tokens: int = 0
    usd: float = 0.0
    """Of models that charge, proposals included."""


class PromptResult(Struct, frozen=True):
    model: str
    proposer: str
    start: str
    best: str
    """The prompt that won the trials; the first one where none did."""
    is_confirmed: bool
    start_score: float | None
    """Of the first prompt on the trial slice."""
    tried: tuple[Tried, ...]
    confirmation: Paired | None
    """Of the first prompt and the winner on the confirm slice; None where nothing won."""
    settings: PromptSettings
    sizes: tuple[int, int, int]
    spending: Spending
    problems: tuple[str, ...] = ()

    @property
    def prompt(self) -> str:
        """The prompt to use: the winner where it was confirmed, else the first one."""
        return self.best if self.is_confirmed else self.start


class Entry(Struct, frozen=True, omit_defaults=True):
    key: str
    marks: list[float | None] = []
    cases: list[Case] = []
    candidates: list[Candidate] = []
    tokens: int = 0
    usd: float = 0.0
    problem: str = ""


async def optimise(
    lm: LM,
    slices: Slices,
    scorer: Scorer,
    proposer: Proposer,
    settings: PromptSettings | None = None,
    *,
    prompt: str | None = None,
    rollout: Rollout = single_turn,
    part: str = "",
    journal: Path | None = None,
    tell: Callable[[str], None] | None = None,
) -> PromptResult:
    """Search a better system prompt; `prompt` is the present one, the tasks' own by default.

    `part` names the reward that is the score; empty takes the total. `tell` hears one line for each
    candidate.
    """
    chosen = settings or PromptSettings()
    seen: dict[bytes, str] = {}
    for name, tasks in slices._asdict().items():
        for task in tasks:
            key = msgspec.json.encode(with_system_prompt.plain(task, "").messages)
            if seen.setdefault(key, name) != name:
                where = f"the {name} slice also stands in the {seen[key]} slice"
                raise UserError(f"task {task.id} of {where}; expected a question in one alone")
    start = system_prompt.plain([*slices.shown, *slices.trial, *slices.confirm])
    start = start if prompt is None else prompt.strip()
    with ExitStack() as held:
        file = held.enter_context(LineFile(journal, Entry)) if journal is not None else None
        search = _Search(lm, scorer, chosen, rollout, part, file)
        return await search.run(slices, proposer, start, tell or (lambda line: None))


class _Search:
    def __init__(
        self,
        lm: LM,
        scorer: Scorer,
        settings: PromptSettings,
        rollout: Rollout,
        part: str,
        file: LineFile[Entry] | None,
    ) -> None:
        self.lm, self.scorer, self.settings = lm, scorer, settings
        self.rollout, self.part, self.file = rollout, part, file
        self.known = {entry.key: entry for entry in file.records} if file is not None else {}
        self.spending = Spending()
        self.problems: list[str] = []
        sampling = msgspec.json.encode(settings.sampling)
        # A part of a reward's name, a rollout's settings and code: what else could change a mark.
        played = "" if file is None else code_digest(rollout)
        about = (fingerprint(scorer), part, played)
        self.base = digest(*model_key(lm), sampling, *about)

    async def run(
        self, slices: Slices, proposer: Proposer, start: str, tell: Callable[[str], None]
    ) -> PromptResult:
        settings, level = self.settings, self.settings.level
        present = start
        known = {start.strip()}
        tried: list[Tried] = []
        marks, _ = await self.answer(present, slices.trial, "trial")
        valid = [mark for mark in marks if mark is not None]
        if not valid:
            raise UserError("no answer of the present prompt could be scored; see `burnish eval`.")
        start_score = math.fsum(valid) / len(valid)
        tell(f"present prompt: {start_score:.3f} on {len(marks)} tasks")
        for number in range(1, settings.rounds + 1):
            passed: list[tuple[Tried, list[float | None]]] = []
            for candidate in worth_trying(
                await self.propose(proposer, present, slices.shown, number), known
            ):
                after, _ = await self.answer(candidate.prompt, slices.trial, "trial")
                one = judged(number, candidate, compare_marks.plain(marks, after), level)
                found = one.paired
                score = f"{found.after:.3f} after {found.before:.3f}, " if found else ""
                tell(f"round {number}, {candidate.origin}: {score}{one.verdict}")
                tried.append(one)
                passed += [(one, after)] if one.is_accepted else []
            if not passed:
                continue
            best, marks = max(passed, key=lambda pair: _gain(pair[0]))
            present = best.candidate.prompt
            for one, _ in passed:
                if one is not best:
                    is_equal = _gain(one) == _gain(best)
                    why = "an equal one came first" if is_equal else "another was better"
                    tried[tried.index(one)] = msgspec.structs.replace(
                        one, is_accepted=False, verdict=f"passed; {why}"
                    )
        confirmation = None
        if present != start:
            before, _ = await self.answer(start, slices.confirm, "confirm")
            after, _ = await self.answer(present, slices.confirm, "confirm")
            confirmation = compare_marks.plain(before, after)
        return PromptResult(
            model=self.lm.name,
            proposer=proposer.name,
            start=start,
            best=present,
            is_confirmed=confirmation is not None and confirmation.is_better(settings.alpha),
            start_score=start_score,
            tried=tuple(tried),
            confirmation=confirmation,
            settings=settings,
            sizes=(len(slices.shown), len(slices.trial), len(slices.confirm)),
            spending=self.spending,
            problems=tuple(self.problems),
        )

    async def propose(
        self, proposer: Proposer, present: str, shown: Sequence[Task], number: int
    ) -> list[Candidate]:
        marks, cases = await self.answer(present, shown, "shown")
        valid = [mark for mark in marks if mark is not None]
        best = max(valid, default=0.0)
        is_told = best > min(valid, default=0.0) or best >= 1.0
        solved = [c for c in cases if is_told and c.score is not None and c.score >= best]
        failures = sorted(
            (c for c in cases if c not in solved),
            key=lambda c: -math.inf if c.score is None else c.score,
        )
        count, seed = self.settings.candidates, derive(self.settings.seed, "propose", number)
        seen = Situation(present, failures, solved)
        shows = msgspec.json.encode(seen)
        key = digest(self.base, "propose", proposer.name, shows, str(count), str(seed))
        entry = self.known.get(key)
        if entry is None:
            with metered() as meter:
                found, problem = await proposed(proposer, seen, count, seed)
            entry = Entry(key, candidates=found, usd=meter.cost.usd, problem=problem)
            self._keep(entry, again=bool(problem))
        self._spend(entry)
        if entry.problem:
            self.problems.append(f"round {number}: {entry.problem}")
        return entry.candidates

    async def answer(
        self, prompt: str, tasks: Sequence[Task], name: str
    ) -> tuple[list[float | None], list[Case]]:
        marks: list[float | None] = []
        cases: list[Case] = []
        with waiting_for(f"prompt on the {name} slice", "tasks", total=len(tasks)):
            for first in range(0, len(tasks), PART):
                some = tasks[first : first + PART]
                entry = await self._answered(prompt, some, first)
                advance(f"prompt on the {name} slice", len(some))
                self._spend(entry)
                marks += entry.marks
                cases += entry.cases
        return marks, cases

    async def _answered(self, prompt: str, tasks: Sequence[Task], first: int) -> Entry:
        asked = [with_system_prompt.plain(task, prompt) for task in tasks]
        seed = derive(self.settings.seed, "answer")
        key = digest(self.base, msgspec.json.encode(asked), str(first), str(seed))
        if (known := self.known.get(key)) is not None:
            return known
        slots = list(enumerate(asked, start=first))
        sampling = msgspec.structs.replace(self.settings.sampling, n=1, seed=seed)
        with metered() as meter:
            groups = await evaluate_slots(
                self.lm, slots, self.scorer, sampling, rollout=self.rollout
            )
        # One mark a task: where a rollout has several roles, the first one's.
        items = [group[0] for group in groups]
        marks = summarise(items, self.part).marks
        tokens = sum(item.trajectory.as_response().tokens for group in groups for item in group)
        cases = [case_of(item, mark) for item, mark in zip(items, marks, strict=True)]
        entry = Entry(key, marks, cases, tokens=tokens, usd=meter.cost.usd)
        lost = [item.reward for item, mark in zip(items, marks, strict=True) if mark is None]
        self._keep(entry, again=any(map(_failed_outside, lost)))
        return entry

    def _spend(self, entry: Entry) -> None:
        self.spending.answers += len(entry.marks)
        self.spending.tokens += entry.tokens
        self.spending.usd += entry.usd

    def _keep(self, entry: Entry, *, again: bool) -> None:
        """Known from now on; in the journal too, unless the next start is to ask `again`."""
        self.known[entry.key] = entry
        if self.file is not None and not again:
            self.file.append(entry)


def _failed_outside(reward: Reward) -> bool:
    """Whether a server, a process or a deadline is the reason that there is no mark."""
    is_outside = reward.status in (Status.INFRA_ERROR, Status.TIMEOUT)
    return is_outside or any(map(_failed_outside, reward.parts))


def judged(number: int, candidate: Candidate, paired: Paired | None, level: float) -> Tried:
    """A candidate of a round with the verdict of its comparison."""
    if paired is None:
        return Tried(number, candidate, None, False, "no answer could be scored")
    verdict = f"may be chance (p {paired.p:.2g}, needs {level:.2g})"
    if paired.is_better(level):
        verdict = "accepted"
    elif paired.lost > 0:
        verdict = f"{counted(paired.lost, 'answer')} could no longer be scored"
    elif paired.difference.value <= 0:
        verdict = "not better"
    return Tried(number, candidate, paired, paired.is_better(level), verdict)


def _gain(one: Tried) -> float:
    return one.paired.difference.value if one.paired is not None else -math.inf


@public
def prompt_diff(before: str, after: str) -> str:
    """The unified diff of two prompts.

    >>> print(prompt_diff("Be brief.", "Be brief.\\nBe right."))
    --- present
    +++ proposed
    @@ -1 +1,2 @@
     Be brief.
    +Be right.
    """
    old, new = before.splitlines(), after.splitlines()
    return "\n".join(difflib.unified_diff(old, new, "present", "proposed", lineterm=""))


@public
def verdict_line(result: PromptResult) -> str:
    """The outcome in one line."""
    tries = len(result.tried)
    if not tries:
        why = f" ({result.problems[0]})" if result.problems else ""
        return f"The proposer gave no candidate{why}; the prompt stays. Try another proposer."
    if result.best == result.start:
        return f"No candidate of {tries} was better at the corrected level; the prompt stays."
    shown = result.confirmation or "nothing could be scored"
    if result.is_confirmed:
        return f"A better prompt, confirmed on held-out tasks: {shown}."
    return f"A candidate won the trials and was not confirmed on held-out tasks ({shown}); the prompt stays."


@public
def prompt_report(result: PromptResult) -> str:
    """The whole report, as Markdown."""
    settings, (shown, trial, confirm) = result.settings, result.sizes
    spent = result.spending
    cost = f", {spent.usd:.4f} USD" if spent.usd else ""
    lines = [
        "# Prompt optimisation",
        "",
        verdict_line.plain(result),
        "",
        f"Model `{result.model}`, proposals by {result.proposer}. {shown} tasks shown to the "
        f"proposer, {trial} for trials, {confirm} to confirm. {settings.rounds} rounds of "
        f"{settings.candidates}; a try passes at p <= {settings.level:.2g} (alpha {settings.alpha:g} "
        f"over {settings.rounds * settings.candidates} tries).",
        f"{spent.answers} answers, {spent.tokens} tokens written{cost}.",
        "",
        "## Diff",
        "",
        "```diff",
        prompt_diff.plain(result.start, result.best) or "(none)",
        "```",
        "",
        "## Candidates",
        "",
        "| round | from | score | change | p | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for one in result.tried:
        cells = ["", "", ""]
        if one.paired is not None:
            change = one.paired.difference
            interval = f"{change.value:+.3f} [{change.low:+.3f}, {change.high:+.3f}]"
            cells = [f"{one.paired.after:.3f}", interval, f"{one.paired.p:.3g}"]
        row = [str(one.round), one.candidate.origin, *cells, one.verdict]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
    for number, one in enumerate(result.tried, start=1):
        # Indented, so that nothing in it is read as Markdown.
        lines += ["", f"### {number}: {one.candidate.origin}", ""]
        lines += [f"    {line}" for line in one.candidate.prompt.splitlines()]
    if result.problems:
        lines += ["", "## Problems", "", *(f"- {line}" for line in result.problems)]
    return "\n".join(lines) + "\n"
