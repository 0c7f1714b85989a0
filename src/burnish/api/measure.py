"""One line each: sample a model, evaluate it on tasks, compare runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, overload

from msgspec import Struct
from msgspec.structs import replace

from burnish.api.ask import as_messages
from burnish.api.config import Config
from burnish.api.explained import Explained
from burnish.api.models import continues_text, opened, text_ids, wait_for
from burnish.api.run import A_RUN, Run, load_run
from burnish.api.settings import as_settings
from burnish.api.sweep import SweepResult
from burnish.api.sweep_plan import RunState
from burnish.arguments import as_path, as_word, refused
from burnish.bench.comparison import RunComparison, compare_runs
from burnish.bench.evaluation import Evaluation, evaluate as evaluate_tasks
from burnish.bench.run_tables import RunTable, run_table
from burnish.boundary import Count, PositiveInt, public, public_method
from burnish.config.given import PYTHON
from burnish.config.recipes import Asked, all_recipes, change, resolve
from burnish.errors import UserError
from burnish.lm.base import Completion, Prompt, Sampling
from burnish.records import Message
from burnish.rewards.combine import Weighted
from burnish.rewards.config import build_all
from burnish.rewards.scorer import bind_check, gather
from burnish.rollouts.base import Rollout
from burnish.seeds import derive
from burnish.store import RunStore
from burnish.tasks.base import TaskSet
from burnish.tasks.config import build as build_tasks

# --- sample a model


@dataclass(frozen=True)
class Generated:
    """Answers of a model, in the order of the prompts; of several to a prompt, one after another."""

    model: str
    prompts: tuple[str, ...]
    completions: tuple[Completion, ...]

    @property
    def texts(self) -> list[str]:
        """The answers alone."""
        return [completion.text for completion in self.completions]

    def rows(self) -> list[dict[str, Any]]:
        """One plain row an answer: prompt, response, finish and number of tokens."""
        return [
            {
                "prompt": prompt,
                "response": one.text,
                "finish": one.finish.value,
                "tokens": len(one.token_ids) or one.completion_tokens,
            }
            for prompt, one in zip(self.prompts, self.completions, strict=True)
        ]

    def __len__(self) -> int:
        return len(self.completions)

    def __iter__(self) -> Iterator[Completion]:
        return iter(self.completions)

    def __getitem__(self, place: int) -> Completion:
        return self.completions[place]

    def __repr__(self) -> str:
        pairs = zip(self.prompts, self.texts, strict=True)
        return "\n".join(f"{prompt!r:.70} -> {text!r:.200}" for prompt, text in pairs)


@public
def generate(
    model: object,
    prompts: object,
    *,
    n: int = 1,
    max_tokens: int = 256,
    temperature: float = 0.0,
    seed: int = 0,
    system: str = "",
    stop: Sequence[str] = (),
    raw: bool | None = None,
    **sampling: object,
) -> Generated:
    """Sample a model: a name, a folder, a server's address, a run or an `LM`; one prompt or many.

    A prompt is a text or a list of chat messages. Greedy by default; `n` answers to each prompt.
    `raw` continues texts as they stand, without the chat template; by default a run that was only
    pre-trained does so.

    >>> answers = generate("tiny", ["Hello", "What is 3 + 4?"], max_tokens=4)
    >>> len(answers), answers[0].finish.value
    (2, 'length')
    """
    chats = _chats(prompts, system)
    is_raw = continues_text(model) and not system if raw is None else raw
    for place, chat in enumerate(chats if is_raw else ()):
        if len(chat) != 1 or chat[0].role != "user":
            roles = ", ".join(turn.role for turn in chat)
            raise UserError(
                f"raw: prompt {place} is a conversation of roles [{roles}]; expected a text without a "
                "system message, which is continued as it stands"
            )
    given: dict[str, Any] = {"n": n, "temperature": temperature, "max_tokens": max_tokens}
    try:
        how = Sampling(stop=tuple(stop), **(given | sampling))
    except TypeError as error:
        raise UserError(
            f"generate: {error}; expected {', '.join(Sampling.__struct_fields__)}."
        ) from None

    async def work() -> Generated:
        async with opened(model) as lm:
            prompts: Sequence[Prompt] = chats
            if is_raw:
                prompts = [text_ids(lm, chat[-1].text) for chat in chats]
            calls = [
                partial(lm.sample, prompt, replace(how, seed=derive(seed, "generate", i)))
                for i, prompt in enumerate(prompts)
            ]
            found = await gather(calls)
        shown = [chat[-1].text for chat, own in zip(chats, found, strict=True) for _ in own]
        return Generated(lm.name, tuple(shown), tuple(one for own in found for one in own))

    return wait_for(work)


def _chats(prompts: Any, system: str) -> list[tuple[Message, ...]]:
    is_one = isinstance(prompts, str) or (
        isinstance(prompts, list | tuple)
        and bool(prompts)
        and all(isinstance(turn, Message | Mapping) for turn in prompts)
    )
    if not is_one and (not isinstance(prompts, list | tuple) or not prompts):
        raise refused("prompts", prompts, "a text, a list of texts, or lists of chat messages")
    chats = [as_messages(one) for one in ([prompts] if is_one else prompts)]
    first = (Message("system", system),) if system else ()
    return [(*first, *chat) for chat in chats]


# --- evaluate a model


@dataclass(frozen=True)
class Evaluated:
    """A model's score on tasks, with an interval and every answer."""

    model: str
    task: str
    evaluation: Evaluation
    answers: tuple[Explained, ...] = field(repr=False)

    @property
    def value(self) -> float | None:
        """Mean over the answers that have a value; None where none has."""
        return self.evaluation.decided

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean; None where all values are equal, so that there is none."""
        found = self.evaluation.score
        return (found.low, found.high) if found and found.low < found.high else None

    @property
    def doubt(self) -> str:
        """Why the score says little, such as `too few to say`; empty where nothing speaks against it."""
        return self.evaluation.score.doubt if self.evaluation.score else ""

    def rows(self) -> list[dict[str, Any]]:
        """One plain row an answer: what was asked and said, its score, and why it has none."""
        return [
            {
                "id": item.task.id,
                "prompt": item.task.prompt,
                "response": item.trajectory.text,
                "score": mark,
                "status": item.reward.status.value,
                "reason": item.reward.reason,
                "parts": item.reward.components,
                "finish": item.trajectory.finish.value,
            }
            for item, mark in zip(self.evaluation.items, self.evaluation.marks, strict=True)
        ]

    def record(self) -> dict[str, Any]:
        """The score as plain values: over the decided answers, over all, and the valid share."""
        found, low_high = self.evaluation, self.interval or (None, None)
        return {
            "model": self.model,
            "task": self.task,
            "count": len(found.marks),
            "score": found.decided,
            "low": low_high[0],
            "high": low_high[1],
            "doubt": self.doubt,
            "all": found.all,
            "valid": found.valid,
        }

    def __len__(self) -> int:
        return len(self.answers)

    def __repr__(self) -> str:
        marks = self.evaluation.marks
        scored = sum(mark is not None for mark in marks)
        text = str(self.evaluation.score or "no value")
        return f"<{self.model} on {self.task}: {text}; {scored} of {len(marks)} scored>"


@public
def evaluate(
    model: object,
    task: object = None,
    *,
    rewards: object = None,
    prompts: PositiveInt = 100,
    max_tokens: PositiveInt | None = None,
    columns: Mapping[str, str] | None = None,
    part: str = "",
) -> Evaluated:
    """Greedy answers of a model to tasks, scored, with a 95 % interval.

    `task` is a recipe or a `Config` (its held-out tasks and rewards), or what `train` takes as data:
    then every row counts and `rewards` says how. A run is evaluated on its own tasks by default.
    `prompts` is how many at most; `part` names the reward that is the score, the total by default.

    >>> found = evaluate("tiny", "tiny", prompts=3, max_tokens=4)
    >>> len(found), found.task
    (3, 'arithmetic')
    >>> evaluate("tiny", [{"prompt": "Say 7.", "answer": "7"}], rewards="match", max_tokens=2).value
    0.0
    """
    asked, is_whole = asked_tasks(model, task, rewards, columns)
    test = EvaluationSetup.of(asked, part, max_tokens)
    chosen = test.tasks.sample(prompts) if is_whole else test.tasks.held_out(prompts)

    async def work() -> Evaluated:
        async with opened(model) as lm:
            found = await evaluate_tasks(
                lm,
                chosen,
                test.scorer,
                test.sampling,
                part=test.part,
                deadline_s=test.deadline_s,
                rollout=test.rollout,
            )
        answers = [Explained(i.task.prompt, i.trajectory.text, i.reward) for i in found.items]
        return Evaluated(lm.name, test.tasks.name, found, tuple(answers))

    return wait_for(work)


class EvaluationSetup(NamedTuple):
    """Tasks of a config, how they are played, and what scores the answers."""

    tasks: TaskSet
    scorer: Weighted
    part: str
    """The reward that is the score; empty for the total."""
    sampling: Sampling
    """Greedy."""
    rollout: Rollout
    deadline_s: float

    @classmethod
    def of(cls, asked: Asked, part: str = "", max_tokens: int | None = None) -> EvaluationSetup:
        """That of a config; `part` and `max_tokens` are the config's own where not given."""
        config = asked.resolved.value
        tasks = build_tasks(config.task, config.run.seed, asked.root)
        scorer = build_all(config.rewards, base=asked.root)
        if part != "":
            as_word("part", part, [one.name for one in scorer.children])
        bind_check(scorer, tasks.fields)
        limit = max_tokens or config.evaluation.max_tokens or config.rollout.budget
        sampling = Sampling(temperature=0.0, max_tokens=limit, stop=config.rollout.stop)
        rollout = config.rollout.build_evaluation(asked.root)
        chosen = part or config.evaluation.part
        return cls(tasks, scorer, chosen, sampling, rollout, config.rollout.score_timeout_s)


def asked_tasks(
    model: Any, task: Any, rewards: Any, columns: Mapping[str, str] | None
) -> tuple[Asked, bool]:
    """The config to evaluate on, and whether its rows are all meant rather than a held-out side."""
    if task is None and not isinstance(model, Run):
        raise UserError(
            "task: got None; expected a recipe, a Config, rows, a file or a task's name."
        )
    is_recipe = isinstance(task, str | Path) and (
        Path(task).suffix == ".toml" or str(task) in all_recipes()
    )
    if task is None or isinstance(task, Config) or is_recipe:
        more = as_settings({"rewards": rewards, "columns": columns})
        if is_recipe:
            return resolve([str(task)], more, PYTHON), False
        asked = (model.config if task is None else task).asked
        return (change(asked, more) if more else asked), False
    if rewards is None:
        raise UserError("rewards: got None beside data; expected how the answers are scored.")
    is_rows = not isinstance(task, Struct) and not (isinstance(task, Mapping) and "kind" in task)
    is_rows = is_rows and not callable(task) and (not isinstance(task, str) or Path(task).exists())
    given = {"data": task, "rewards": rewards, "columns": columns}
    given |= {"held_out": 0.0} if is_rows else {}
    return resolve(["grpo"], as_settings(given), PYTHON), is_rows


# --- compare runs


AnyRun = Run | RunState | str | Path


@dataclass(frozen=True)
class Compared:
    """Two runs on the same held-out prompts: which is better, and how sure that is."""

    comparison: RunComparison = field(repr=False)

    @property
    def verdict(self) -> str:
        """The outcome in one line."""
        return self.comparison.found.verdict

    @property
    def difference(self) -> float | None:
        """Mean of B minus mean of A; None where no prompt is scored in both."""
        test = self.comparison.found.test
        return test.difference.value if test else None

    @property
    def p_value(self) -> float | None:
        """How likely such a difference is by chance."""
        test = self.comparison.found.test
        return test.p_value if test else None

    @property
    def settings(self) -> dict[str, tuple[Any, Any]]:
        """Settings that differ, with both values."""
        return self.comparison.changes

    def record(self) -> dict[str, Any]:
        """The whole comparison as plain values."""
        return self.comparison.record()

    def __repr__(self) -> str:
        return f"<{self.comparison.a.folder.name} (A), {self.comparison.b.folder.name} (B): {self.verdict}>"


@overload
def compare(run_a: AnyRun, run_b: AnyRun, *, step: int | None = None) -> Compared: ...


@overload
def compare(
    run_a: AnyRun,
    run_b: AnyRun,
    run_c: AnyRun,
    /,
    *more: AnyRun,
    step: int | None = None,
    baseline: str = "",
) -> RunTable: ...


@public_method
def compare(
    run_a: object,
    run_b: object = None,
    *more: object,
    step: Count | None = None,
    baseline: str = "",
) -> Compared | RunTable:
    """Which runs are better on held-out prompts: two by a paired test, more as a table over seeds.

    A run is a `Run`, its name or folder, or one of a sweep's `runs`; `sweep(...).table` compares all
    of a sweep. `step`: after so many steps; by default after the last evaluation of each. Of three
    or more, runs that differ only in their seed are one group, and `baseline` (a run's name or a
    group's label, else the first) is what the others are compared with.

    >>> other = train("tiny", "steps=1", name="second", evaluation={"prompts": 4}, show=False)
    >>> compare("first", "second").difference is not None
    True
    >>> third = train("tiny", "steps=1", name="third", evaluation={"prompts": 4}, seed=2, show=False)
    >>> [len(group.runs) for group in compare("first", "second", third).groups]
    [1, 2]
    """
    if baseline and not more:
        raise refused("baseline", baseline, "three or more runs beside it")
    names = ["run_a", "run_b", *(f"run {place}" for place in range(3, 3 + len(more)))]
    runs = [_as_run(name, run) for name, run in zip(names, (run_a, run_b, *more), strict=True)]
    places = [run.folder.resolve() for run in runs]
    for place, run in zip(places, runs, strict=True):
        if more and places.count(place) > 1:
            raise UserError(f"run '{run.folder.name}' is given twice; expected different runs.")
    with ExitStack() as stack:
        stores = [stack.enter_context(RunStore.open(r.folder, read_only=True)) for r in runs]
        if more:
            return run_table(stores, step=step, baseline=baseline)
        return Compared(compare_runs(stores[0], stores[1], step=step))


def _as_run(what: str, run: Any) -> Run:
    if isinstance(run, Run):
        return run
    if isinstance(run, SweepResult):
        raise refused(
            what,
            run,
            "one run; result.table compares all runs of a sweep, compare(result.runs[0], "
            "result.runs[1]) two of them",
        )
    return load_run(as_path(what, run.folder if isinstance(run, RunState) else run, A_RUN))
