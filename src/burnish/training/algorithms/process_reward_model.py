"""Process reward models: a scalar head learns from labelled steps which of them are right.

The score of a step is `w . h`, h being the hidden state at the last token of its separator, and
`sigma(w . h)` the probability that it is right; the loss is the binary cross-entropy, a mean over
the labelled steps of the update ("Let's verify step by step", arXiv 2305.20050).

A label is 1 for a right step, 0 for a wrong one and None for one that nobody judged. Labels come
from a list, or from the place of the first wrong step: steps before it are right, what follows it
has no label, and null means that all steps are right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from msgspec.structs import replace
from torch import Tensor
from torch.nn import functional

from burnish.bench.first_wrong import (
    FirstWrong,
    best_threshold,
    calibrated_f1,
    first_flagged,
    halves,
    labels_of,
)
from burnish.bench.statistics import Estimate, grouped_estimate
from burnish.errors import ArgumentError
from burnish.lm.scalar_head import StepRow, step_row
from burnish.lm.tokenizer import Tokenizer
from burnish.numbers import sigmoid
from burnish.records import Author, Evidence, Reward, Span, Task, Trajectory
from burnish.rewards.models.card import ProcessCard, write_card
from burnish.rewards.models.pair_metrics import auc
from burnish.store import StoredSample
from burnish.tasks.base import content_key
from burnish.training.algorithm import (
    HELD_OUT,
    HeldOutScores,
    Loss,
    Setup,
    StepReport,
    StepResult,
    stored,
)
from burnish.training.data import missing_field
from burnish.training.forecast import MEASURED, Workload, measured
from burnish.training.labelled import (
    Batch,
    LabelledSet,
    ScoreHeadAlgorithm,
    UnusableRow,
    in_place,
    surely_fit,
)
from burnish.training.packing import PackedBatch

if TYPE_CHECKING:
    from burnish.config.schema import Config, ProcessRewardModelTrain
    from burnish.training.data import Data


class Solution(NamedTuple):
    task: Task
    steps: tuple[str, ...]
    labels: tuple[int | None, ...]

    @property
    def is_known(self) -> bool:
        """Whether the labels say which step is the first wrong one, or that there is none."""
        return 0 in self.labels[: self._unlabelled] or self._unlabelled == len(self.labels)

    @property
    def first_wrong(self) -> int | None:
        return self.labels.index(0) if 0 in self.labels else None

    @property
    def _unlabelled(self) -> int:
        return self.labels.index(None) if None in self.labels else len(self.labels)


class Rendered(NamedTuple):
    solutions: Sequence[Solution]
    trajectories: Sequence[Trajectory]
    rows: Sequence[StepRow]
    starts: Sequence[int]
    """Place of each solution's first step among all steps."""
    total: int
    labelled: int


class SolutionMicro(NamedTuple):
    packed: PackedBatch
    read_J: Tensor
    """Flat place (row * width + column) of each step's last token."""
    places_J: Tensor
    """Place of each step among those of the whole update."""
    label_J: Tensor
    """1, 0, or -1 where there is none."""
    total: int
    labelled: int
    names: Sequence[str]


def read_solution(task: Task, fields: ProcessRewardModelTrain) -> Solution:
    steps = task.fields.get(fields.steps)
    if not isinstance(steps, list | tuple) or not steps:
        raise UnusableRow(f"a '{fields.steps}' that is no list of texts with at least one")
    if not all(isinstance(step, str) and step.strip() for step in steps):
        raise UnusableRow("a step that is empty or no text")
    labels = task.fields.get(fields.labels)
    if labels is None:
        if fields.first_wrong not in task.fields:
            raise UnusableRow(f"neither '{fields.labels}' nor '{fields.first_wrong}'")
        try:
            labels = labels_of(task.fields[fields.first_wrong], len(steps))
        except ArgumentError:
            name = fields.first_wrong
            why = f"a '{name}' that is neither null nor the place of a step, from 0 on"
            raise UnusableRow(why) from None
    if not isinstance(labels, list | tuple) or len(labels) != len(steps):
        raise UnusableRow(f"a '{fields.labels}' that is no list with one label for each step")
    if all(label is None for label in labels):
        raise UnusableRow(f"no label in '{fields.labels}'")
    # Compared with both, so that NaN and other numbers are refused.
    if not all(label is None or label == 0 or label == 1 for label in labels):
        raise UnusableRow(f"a label in '{fields.labels}' that is none of 1, 0 and null")
    found = tuple(None if label is None else int(label) for label in labels)
    return Solution(task, tuple(steps), found)


def render_solutions(
    tokenizer: Tokenizer, solutions: Sequence[Solution], separator: str
) -> Rendered:
    rows = [step_row(tokenizer, one.task.messages, one.steps, separator) for one in solutions]
    trajectories = [
        Trajectory(
            id=f"{one.task.id}.steps{number}",
            task_id=one.task.id,
            group=f"solution/{content_key(one.task.messages)}",
            spans=(
                *row.prompt,
                Span(Author.MODEL, row.answer, (0.0,) * len(row.answer), trainable=True),
            ),
            text=separator.join(one.steps),
            role="solution",
        )
        for number, (one, row) in enumerate(zip(solutions, rows, strict=True))
    ]
    starts = [0, *accumulate(len(one.steps) for one in solutions)]
    labelled = sum(label is not None for one in solutions for label in one.labels)
    return Rendered(solutions, trajectories, rows, starts[:-1], starts[-1], labelled)


def solution_micro(rendered: Rendered, packed: PackedBatch, device: torch.device) -> SolutionMicro:
    steps: list[tuple[int, int, int]] = []
    names: list[str] = []
    before = 0
    for member in packed.members:
        row, start = rendered.rows[member], rendered.starts[member]
        marks = zip(row.ends, rendered.solutions[member].labels, strict=True)
        for k, (end, label) in enumerate(marks):
            steps.append((before + end, start + k, -1 if label is None else label))
            names.append(f"{rendered.trajectories[member].id}/{k + 1}")
        before += len(row.answer)
    ends_J, places_J, label_J = torch.tensor(steps).to(device).T
    read_J = packed.place_N.index_select(0, ends_J)
    counts = rendered.total, rendered.labelled
    return SolutionMicro(packed, read_J, places_J, label_J, *counts, names)


class ProcessRewardModelAlgorithm(ScoreHeadAlgorithm[Solution, Rendered, SolutionMicro]):
    shares_model = True

    def __init__(self, setup: Setup, settings: ProcessRewardModelTrain) -> None:
        super().__init__(setup, settings)
        self.rows = solution_set(
            setup.data,
            settings,
            seed=setup.seeds.for_("solutions"),
            fits=self._fits,
            max_tokens=self.max_tokens,
        )

    @classmethod
    def faults(cls, config: Config, settings: ProcessRewardModelTrain, data: Data) -> Iterator[str]:
        tasks = data.open(settings.task)
        yield from missing_field(tasks, settings.steps, "train.steps")
        if settings.first_wrong not in tasks.fields:
            yield from missing_field(tasks, settings.labels, "train.labels (or train.first_wrong)")
        if settings.bad_solutions == "refuse":
            solution_set(data, settings).held_out(config.evaluation.prompts)

    def render(self, rows: Sequence[Solution]) -> Rendered:
        return render_solutions(self.tokenizer, rows, self.settings.separator)

    def cut(self, rendered: Rendered, tokens: int) -> Iterator[SolutionMicro]:
        device = self.setup.trainable.device
        for packed in self.setup.batches.split(rendered.trajectories, tokens=tokens):
            yield solution_micro(rendered, packed, device)

    def loss(self, model: Any, micro: SolutionMicro) -> Loss:
        score_J = self._scores(model, micro)
        loss_J = step_loss(score_J, micro.label_J.to(score_J.dtype))
        total = loss_J.sum() / max(micro.labelled, 1)
        return Loss(
            total=total,
            ids=micro.names,
            parts={"steps": total.detach()},
            rows={"scores of the steps": score_J.detach()},
            sums={"scores": in_place(score_J, micro.places_J, micro.total)},
        )

    def workload(self) -> Workload:
        shown = self.render(self.rows.first(min(self.settings.batch, MEASURED))).trajectories
        return measured(self.settings.batch, shown)

    def finish(self, step: int, batch: Batch[Rendered], result: StepResult) -> StepReport:
        rendered = batch.rendered
        scored = _scored(rendered, result.sums["scores"])
        self.store(step, lambda: stored_solutions(step, "train", rendered, scored))
        self.done = step + 1
        tokens = sum(one.trained_tokens for one in rendered.trajectories)
        steps = _labelled(scored)
        found = {"steps/accuracy": sum(_is_right(p, label) for p, label in steps) / len(steps)}
        for name, wanted in (("right", 1), ("wrong", 0)):
            values = [p for p, label in steps if label == wanted]
            if values:
                found[f"steps/{name}"] = sum(values) / len(values)
        return StepReport({**found, "length/tokens": float(tokens)})

    def evaluate(self, step: int) -> HeldOutScores | None:
        """Share of held-out solutions whose first wrong step is found, or none where all are right."""
        if not self.held_out:
            return None
        rendered = self.render(self.held_out)
        module = self.setup.trainable.module
        (score_N,) = self.compute(
            rendered,
            rendered.total,
            lambda micro: (micro.places_J, [self._scores(module, micro).double()]),
        )
        scored = _scored(rendered, score_N)
        report = held_out_report(scored)
        samples = stored_solutions(step, HELD_OUT, rendered, scored, report.thresholds)
        return HeldOutScores(report.found, "accuracy", samples)

    def write(self, folder: Path) -> None:
        card = ProcessCard(
            separator=self.settings.separator, max_tokens=self.max_tokens, step=self.done
        )
        if newest := self.newest_evaluation():
            scored = [
                ScoredSolution(
                    self.rows.read(sample.task),
                    [float(p.value or 0.0) for p in sample.reward.parts],
                )
                for sample in newest[1]
            ]
            card = held_out_report(scored).card(card, newest[0].step)
        write_card(folder, card)

    def _scores(self, model: Any, micro: SolutionMicro) -> Tensor:
        hidden_JD = model(micro.packed.inputs).flatten(0, 1).index_select(0, micro.read_J)
        score_J: Tensor = self.head(hidden_JD.to(self.head.weight.dtype))
        return score_J

    def _fits(self, one: Solution) -> bool:
        separator, messages = self.settings.separator, one.task.messages
        texts = [*(m.text for m in messages), *one.steps, separator * len(one.steps)]
        if surely_fit(texts, len(messages) + 1, self.max_tokens):
            return True
        row = step_row(self.tokenizer, messages, one.steps, separator)
        return len(row.ids) <= self.max_tokens


ALGORITHM = ProcessRewardModelAlgorithm


def step_loss(score_J: Tensor, label_J: Tensor) -> Tensor:
    """Binary cross-entropy of each step's score, 0 where the label is -1: (J,), (J,) -> (J,)."""
    loss_J = functional.softplus(score_J) - label_J.clamp(min=0) * score_J
    return torch.where(label_J < 0, 0.0, loss_J)


def solution_set(
    data: Data, settings: ProcessRewardModelTrain, **more: Any
) -> LabelledSet[Solution]:
    return LabelledSet(
        data.open(settings.task),
        lambda task: read_solution(task, settings),
        what="solutions",
        bad=settings.bad_solutions,
        **more,
    )


class ScoredSolution(NamedTuple):
    solution: Solution
    probabilities: Sequence[float]

    @property
    def prompt(self) -> str:
        return content_key(self.solution.task.messages)


class HeldOutReport(NamedTuple):
    scored: Sequence[ScoredSolution]
    first: FirstWrong
    """Of the solutions whose first wrong step is known."""
    threshold: float

    @property
    def found(self) -> list[float | None]:
        """1 where a solution was judged as its labels say, 0 where not; None where they say nothing."""
        marks = iter(self.first.found)
        return [float(next(marks)) if one.solution.is_known else None for one in self.scored]

    @property
    def thresholds(self) -> list[float]:
        """What each solution was judged by: the best of the other half, or that of the card."""
        own = iter(self.first.thresholds)
        return [next(own) if one.solution.is_known else self.threshold for one in self.scored]

    def card(self, card: ProcessCard, step: int) -> ProcessCard:
        steps = _labelled(self.scored)
        prompts = [one.prompt for one in self.scored for _ in _labelled([one])]
        marks = [_is_right(p, label) for p, label in steps]
        return replace(
            card,
            step=step,
            solutions=len(self.scored),
            steps=len(steps),
            step_accuracy=_interval(grouped_estimate(marks, prompts)),
            auc=auc([p for p, _ in steps], [label for _, label in steps]),
            f1=_interval(self.first.f1),
            wrong=_interval(self.first.wrong),
            right=_interval(self.first.right),
            threshold=self.threshold,
        )


def held_out_report(scored: Sequence[ScoredSolution]) -> HeldOutReport:
    """Figures of held-out solutions; each half is judged by the threshold of the other half.

    Solutions of one prompt are in one half. Halves follow from the prompts alone.
    """
    known = [one for one in scored if one.solution.is_known]
    scores = [one.probabilities for one in known]
    labels = [one.solution.first_wrong for one in known]
    first = calibrated_f1(scores, labels, halves([one.prompt for one in known]))
    return HeldOutReport(scored, first, best_threshold(scores, labels))


def _scored(rendered: Rendered, score_N: Tensor) -> list[ScoredSolution]:
    values = [sigmoid(score) for score in score_N.tolist()]
    return [
        ScoredSolution(one, values[start : start + len(one.steps)])
        for one, start in zip(rendered.solutions, rendered.starts, strict=True)
    ]


def _labelled(scored: Sequence[ScoredSolution]) -> list[tuple[float, int]]:
    return [
        (probability, label)
        for one in scored
        for probability, label in zip(one.probabilities, one.solution.labels, strict=True)
        if label is not None
    ]


def _is_right(probability: float, label: int) -> float:
    return 0.5 if probability == 0.5 else float((probability > 0.5) == bool(label))


def _interval(estimate: Estimate | None) -> tuple[float, float, float] | None:
    return None if estimate is None else (estimate.value, estimate.low, estimate.high)


def stored_solutions(
    step: int,
    split: str,
    rendered: Rendered,
    scored: Sequence[ScoredSolution],
    thresholds: Sequence[float] = (),
) -> list[StoredSample]:
    """One sample a solution: the share of steps judged rightly, each step as a part.

    Without `thresholds`, each solution is judged by 0.5.
    """
    words, rows = {1: "right", 0: "wrong", None: "not labelled"}, []
    judged = zip(scored, thresholds or [0.5] * len(scored), rendered.trajectories, strict=True)
    for one, threshold, trajectory in judged:
        steps = zip(one.probabilities, one.solution.labels, one.solution.steps, strict=True)
        parts = tuple(
            Reward(f"step {number}", value, evidence=(Evidence(words[label], text),))
            for number, (value, label, text) in enumerate(steps, start=1)
        )
        marks = [_is_right(value, label) for value, label in _labelled([one])]
        share, reason = sum(marks) / len(marks), _meaning(one, threshold)
        reward = Reward("steps", share, parts=parts, reason=reason)
        rows.append((one.solution.task, trajectory, reward))
    return stored(step, split, rows)


def _meaning(one: ScoredSolution, threshold: float) -> str:
    def said(place: int | None) -> str:
        return "no step" if place is None else f"step {place + 1}"

    flagged = said(first_flagged(one.probabilities, threshold))
    label = said(one.solution.first_wrong) if one.solution.is_known else "not known"
    return (
        "the share of labelled steps that the model judges rightly; first wrong step by the model "
        f"(below {threshold:.3g}): {flagged}, by its label: {label}"
    )
