"""`burnish.Run`: one run for a notebook: its tables, curves, weights and reasons."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.api.config import Config
from burnish.api.explained import Explained
from burnish.api.models import open_model, wait_for
from burnish.boundary import PositiveInt, public, public_method
from burnish.config import schema
from burnish.config.loading import load_flat
from burnish.config.recipes import Asked, all_recipes
from burnish.errors import UserError
from burnish.intervals import interval_text
from burnish.memory import kept_paths, restore_rows
from burnish.store import RunEnd, RunStatus, RunStore, RunSummary, StoredSample
from burnish.store.frames import Form, RunFrames, find_run
from burnish.store.manifest import newest_weights
from burnish.store.run import DATA
from burnish.store.sample_name import EXAMPLES
from burnish.texts import counted
from burnish.view.curves import curves_of, draw_figure

if TYPE_CHECKING:
    from burnish.bench.reward_check import Report
    from burnish.rewards.scorer import Scorer

A_RUN = "the name or the folder of a run"


class Run(RunFrames):
    """A run by its folder. Every method reads what is stored by then, also while it trains.

    >>> run = load_run("runs/first")
    >>> run.status, run.steps
    ('finished', 2)
    >>> sorted(run.samples(split="train").columns)[:3]
    ['advantage', 'finish', 'group_key']
    >>> run.weights.name
    'step-000002'
    """

    @property
    def name(self) -> str:
        """The run's name is its folder's."""
        return self.folder.name

    @property
    def summary(self) -> RunSummary:
        """Status, steps, samples by split, rewards by status, and the result."""
        with RunStore.open(self.folder, read_only=True) as store:
            return store.summary()

    @property
    def status(self) -> str:
        """`running`, `finished`, `stopped` or `crashed`."""
        return self.summary.status.value

    @property
    def end(self) -> RunEnd:
        """How the last start ended: status, reason, step, time and the type of the exception."""
        with RunStore.open(self.folder, read_only=True) as store:
            return store.end()

    @property
    def reason(self) -> str:
        """Why it stopped or crashed; empty where it goes on or came to its planned end."""
        return self.end.reason

    @property
    def steps(self) -> int:
        """Steps that are stored."""
        return self.summary.steps

    @property
    def time_left(self) -> str:
        """What a run that trains now has told of its end, from measured steps; empty otherwise."""
        with RunStore.open(self.folder, read_only=True) as store:
            is_running = store.summary().status is RunStatus.RUNNING
            told = store.events("time") if is_running else []
        return told[-1].message if told else ""

    @property
    def notes(self) -> list[str]:
        """What became of the data: rows that were skipped, repeat a prompt or were left out."""
        with RunStore.open(self.folder, read_only=True) as store:
            return [event.message for event in store.events(DATA)]

    @property
    def config(self) -> Config:
        """The settings that it was started with."""
        with RunStore.open(self.folder, read_only=True) as store:
            about = store.about
        flat = {key: value for key, value in about.config.items() if not key.startswith("files.")}
        resolved = load_flat(schema.Config, flat)
        restore_rows(kept_paths(list(flat.values())), self.folder)
        recipe = all_recipes().get(about.recipe) or Path(about.recipe or self.name)
        return Config.from_asked(Asked(recipe, resolved))

    @property
    def weights(self) -> Path:
        """The newest checkpoint: a Hugging Face folder that loads as it lies."""
        return newest_weights(self.folder)

    def model(self) -> Any:
        """The trained model as an `LM` that samples and scores; `burnish.generate(run, ...)` uses it."""
        return open_model(self)

    @public_method
    def check_reward(self, reward: object = None, *, limit: PositiveInt = 50) -> Report:
        """Is a reward fit for training? Told on the stored answers, in their groups.

        `reward` is what `burnish.score` takes; without one, the run's own rewards as they are now.
        `limit` groups are taken, spread over the steps.

        >>> report = load_run("runs/first").check_reward(lambda text: float(len(text)))
        >>> [finding.name for finding in report.findings][:3]
        ['range', 'failures', 'groups']
        """
        from burnish.api.ask import as_scorer
        from burnish.bench.reward_check import check_reward, run_cases
        from burnish.rewards.config import build_all

        if reward is None:
            config = self.config
            scorer: Scorer = build_all(config.rewards, base=config.asked.root)
        else:
            scorer = as_scorer(reward)
        with RunStore.open(self.folder, read_only=True) as store:
            cases = run_cases(store, limit, has_record=reward is None)
        return wait_for(partial(check_reward, scorer, cases))

    def why(self, sample: str | int | Any) -> Explained:
        """Why an answer earned what it did: its reward with all parts, evidence and verdicts.

        `sample` is a name such as `train-3-2-4` (step 3, prompt 2, answer 4), a row of `samples()`,
        or a number: 0 is the first answer that was trained on, -1 the last.

        >>> run = load_run("runs/first")
        >>> run.why("train-1-1-1").parts == run.why(run.samples(split="train").iloc[0]).parts
        True
        """
        with RunStore.open(self.folder, read_only=True) as store:
            found = self._find(store, sample)
        return Explained(found.task.prompt, found.trajectory.text, found.reward)

    def _find(self, store: RunStore, sample: Any) -> StoredSample:
        if isinstance(sample, int) and not isinstance(sample, bool):
            query = "SELECT id FROM samples WHERE split = 'train' ORDER BY rowid"
            rows = list(store.query(query))
            if not rows:
                return store.sample("train-1-1-1")  # refused, with the reason why there are none
            if not -len(rows) <= sample < len(rows):
                raise UserError(
                    f"run '{self.name}' has {counted(len(rows), 'answer')} that were trained on; got "
                    f"number {sample}. Name another: {EXAMPLES}."
                )
            return store.sample(rows[sample][0])
        return store.sample(sample if isinstance(sample, str) else str(sample["id"]))

    def plot(self, path: str | Path | None = None) -> Any:
        """Its curves as a matplotlib figure, which a notebook shows; with `path`, saved there too."""
        with RunStore.open(self.folder, read_only=True) as store:
            figure = draw_figure(curves_of(store))
        if path is not None:
            figure.savefig(path)
        return figure

    def __repr__(self) -> str:
        summary = self.summary
        reason = summary.end.reason
        why = f" ({reason})" if reason else ""
        steps = counted(summary.steps, "step")
        return f"<burnish run {self.name}: {summary.status.value}{why}, {steps}{_scores(summary)}>"


@public
def load_run(reference: str | Path, runs: str | Path = "runs") -> Run:
    """A run by its folder, by its name in `runs`, or by the beginning of that name.

    >>> load_run("first").name
    'first'
    """
    return Run(find_run(Path(runs), str(reference)))


@public
def load_runs(folder: str | Path = "runs", form: Form = "pandas") -> Any:
    """One row for each run of a folder: status, steps and its last held-out score, oldest first.

    >>> "first" in list(load_runs("runs").name)
    True
    """
    from burnish.store.frames import load_runs as table

    return table(Path(folder), form)


def _scores(summary: RunSummary) -> str:
    scores = [found for name in ("before", "after") if (found := summary.result.get(name))]
    if len(scores) < 2:
        return ""
    keys = ("value", "low", "high", "size")
    values = [[s[k] for k in keys] if isinstance(s, dict) else s for s in scores]
    return f", held out {' -> '.join(interval_text(*one) for one in values)}"
