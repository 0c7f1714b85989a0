"""Reward models: a scalar head on a causal model learns from pairs which answer is preferred.

The score of an answer is `w . h`, h being the last hidden state of the whole conversation; the loss
is Bradley-Terry's (`rewards/models/term.py`), and `terms` adds others. Checkpoints are what
transformers loads as `AutoModelForSequenceClassification` with one label; how the scores are
distributed on held-out pairs, and how far they can be believed, lies beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor

from burnish.numbers import sigmoid
from burnish.records import Evidence, Reward
from burnish.rewards.models.bias_attributes import KEY, REJECTED, pair_record
from burnish.rewards.models.card import RewardModelCard, ScoredPair, write_card
from burnish.rewards.models.term import Pair, PairStates, pair_loss
from burnish.store import StoredSample
from burnish.training.algorithm import (
    HELD_OUT,
    HeldOutScores,
    Loss,
    Setup,
    StepReport,
    StepResult,
    stored,
)
from burnish.training.labelled import Batch, ScoreHeadAlgorithm, in_place
from burnish.training.metrics import estimate
from burnish.training.pair_terms import PairAlgorithm
from burnish.training.pairs import (
    Answers,
    PairMicro,
    pair_states,
    scored_spans,
    signed_margin,
    step_metrics,
    wins,
)

if TYPE_CHECKING:
    from burnish.config.schema import RewardModelTrain


class RewardModelAlgorithm(ScoreHeadAlgorithm[Pair, Answers, PairMicro], PairAlgorithm):
    """Raises the score of the preferred answer of each pair over that of the other."""

    shares_model = True

    def __init__(self, setup: Setup, settings: RewardModelTrain) -> None:
        super().__init__(setup, settings)
        spans = partial(scored_spans, self.tokenizer, settings)
        self.open_pairs(spans, setup.seeds.for_("pairs"), together=True)

    @cached_property
    def held_out(self) -> list[Pair]:
        return [pair for pair in super().held_out if pair.target != 0.5]

    def loss(self, model: Any, micro: PairMicro) -> Loss:
        states = self._states(model, micro)
        device, exact = states.chosen_P.device, states.chosen_P.dtype
        labels = [[signed_margin(pair), pair.target] for pair in micro.pairs]
        margin_P, target_P = torch.tensor(labels, dtype=exact).to(device, non_blocking=True).T
        difference_P = states.chosen_P - states.rejected_P
        parts = {"preference": pair_loss(difference_P - margin_P, target_P).sum() / micro.total}
        if self.settings.centring:
            squares_P = (states.chosen_P + states.rejected_P).square()
            parts["centring"] = self.settings.centring * squares_P.sum() / micro.total
        sums = {
            "chosen": in_place(states.chosen_P, micro.places_P, micro.total),
            "rejected": in_place(states.rejected_P, micro.places_P, micro.total),
        }
        terms, more = self.terms.loss(states, micro.total)
        parts |= terms
        scores_P2 = torch.stack([states.chosen_P, states.rejected_P], 1).detach()
        return Loss(
            total=torch.stack(list(parts.values())).sum(),
            ids=[pair.task.id for pair in micro.pairs],
            parts={name: part.detach() for name, part in parts.items()},
            rows={"scores of the pair": scores_P2},
            sums=sums | more,
        )

    def finish(self, step: int, batch: Batch[Answers], result: StepResult) -> StepReport:
        answers, found = batch.rendered, result.sums
        chosen_N, rejected_N = found["chosen"], found["rejected"]
        self.store(step, lambda: stored_pairs(step, "train", answers, chosen_N, rejected_N))
        self.done = step + 1
        metrics = step_metrics(answers, chosen_N, rejected_N)
        right = [mark for mark in _right(answers.pairs, chosen_N - rejected_N) if mark is not None]
        if right:
            metrics["rewards/accuracies"] = sum(right) / len(right)
        return StepReport(metrics | self.terms.finish(step, found))

    def evaluate(self, step: int) -> HeldOutScores | None:
        """The accuracy on held-out pairs, ties left out; 0.5 where both answers score the same."""
        pairs = self.held_out
        if not pairs:
            return None
        answers, module = self.render(pairs), self.setup.trainable.module

        def scores(micro: PairMicro) -> tuple[Tensor, Tensor]:
            states = self._states(module, micro)
            return states.chosen_P.double(), states.rejected_P.double()

        chosen_N, rejected_N = (one.cpu() for one in self.over_pairs(answers, scores))
        samples = stored_pairs(step, HELD_OUT, answers, chosen_N, rejected_N)
        marks = _right(pairs, chosen_N - rejected_N)
        return HeldOutScores(marks, "accuracy", samples)

    def write(self, folder: Path) -> None:
        """The card of the model: its scores on the held-out pairs of the newest evaluation."""
        newest = self.newest_evaluation()
        shares = estimate(newest[0].summary) if newest else None
        if newest is None or shares is None:
            return
        scored = []
        for sample in newest[1]:
            pair, found = self.pairs.read(sample.task), sample.reward.components
            scores = float(found["chosen"] or 0.0), float(found["rejected"] or 0.0)
            scored.append(ScoredPair(*scores, pair.chosen, pair.rejected, pair.target))
        if scored:
            accuracy = (shares.value, shares.low, shares.high)
            size, step = self.max_tokens, newest[0].step
            card = RewardModelCard.of(scored, step=step, max_tokens=size, accuracy=accuracy)
            write_card(folder, card)

    def hidden(self, hidden_RSD: Tensor, micro: PairMicro) -> Tensor:
        return super().hidden(hidden_RSD, micro).to(self.head.weight.dtype)

    def _states(self, model: Any, micro: PairMicro) -> PairStates:
        hidden_BD = self.hidden(model(micro.packed.inputs), micro)
        score_B = self.head(hidden_BD)
        return pair_states(hidden_BD, score_B[micro.chosen_P], score_B[micro.rejected_P], micro)


ALGORITHM = RewardModelAlgorithm


def _right(pairs: Sequence[Pair], difference_N: Tensor) -> list[float | None]:
    """1 where the scores agree with the label, 0 where not; None for a tie, which has no label."""
    marks = wins(difference_N).tolist()
    return [
        None if pair.target == 0.5 else mark if pair.target > 0.5 else 1 - mark
        for pair, mark in zip(pairs, marks, strict=True)
    ]


def stored_pairs(
    step: int, split: str, answers: Answers, chosen_N: Tensor, rejected_N: Tensor
) -> list[StoredSample]:
    """One sample a pair: the preferred answer, and the scores of both as parts of the margin."""
    scores = zip(chosen_N.tolist(), rejected_N.tolist(), strict=True)
    rows = []
    for i, (pair, (chosen, rejected)) in enumerate(zip(answers.pairs, scores, strict=True)):
        # The sample's own text is the preferred answer; a page of the pair shows both.
        other = (Evidence(REJECTED, pair.rejected),)
        parts = (
            Reward("chosen", chosen),
            Reward("rejected", rejected, weight=-1.0, evidence=other),
        )
        label = "a tie" if pair.target == 0.5 else f"{pair.target:g} by its label"
        meaning = (
            "the chosen answer's score less the rejected one's; chosen is better with probability "
            f"{sigmoid(chosen - rejected):.3f}, {label}"
        )
        own, against = (
            answers.trajectories[side[i]] for side in (answers.chosen, answers.rejected)
        )
        tokens = (own.trained_tokens, against.trained_tokens)
        record = pair_record(pair, tokens, has_texts=split != "train")
        # A copy: pairs of one prompt may share an answer.
        trajectory = msgspec.structs.replace(own, info={**own.info, KEY: record})
        reward = Reward("margin", chosen - rejected, parts=parts, reason=meaning)
        rows.append((pair.task, trajectory, reward))
    return stored(step, split, rows)
