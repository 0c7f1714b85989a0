"""Reward models: a scalar head on a causal model learns from pairs which answer is preferred.

    train = { kind = "reward_model" }                       # tasks with fields `chosen`, `rejected`
    train = { kind = "reward_model", margin = "strength", tie = "is_tie", ties = "half" }

The score of an answer is `w . h`, h being the last hidden state of the whole conversation; the loss
is Bradley-Terry's (`rewards/models/term.py`), and `terms` adds others on the same hidden
states. Both answers share the prompt's row where it is short enough. Checkpoints are what
transformers loads as `AutoModelForSequenceClassification` with one label; how the scores are
distributed on held-out pairs, and how far they can be believed, lies beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    HeldOutScores,
    Loss,
    Setup,
    StepReport,
    StepResult,
)
from burnish.training.labelled import Batch, ScoreHeadAlgorithm, in_place
from burnish.training.metrics import estimate
from burnish.training.pair_terms import PairAlgorithm
from burnish.training.pairs import (
    Answers,
    PairFields,
    PairMicro,
    PairSet,
    length_metrics,
    over_pairs,
    pair_faults,
    pair_states,
    scored_spans,
    signed_margin,
    wins,
)

if TYPE_CHECKING:
    from burnish.config.schema import Config, RewardModelTrain
    from burnish.training.data import Data


class RewardModelAlgorithm(ScoreHeadAlgorithm[Pair, Answers, PairMicro], PairAlgorithm):
    """Raises the score of the preferred answer of each pair over that of the other."""

    def __init__(self, setup: Setup, settings: RewardModelTrain) -> None:
        super().__init__(setup, settings)
        fields = pair_fields(settings)
        spans = partial(scored_spans, self.tokenizer, fields)
        self.open_pairs(fields, spans, setup.seeds.for_("pairs"), together=True)

    @classmethod
    def faults(cls, config: Config, settings: RewardModelTrain, data: Data) -> Iterator[str]:
        tasks, fields = data.open(settings.task), pair_fields(settings)
        yield from pair_faults(tasks, fields)
        if fields.bad == "refuse":
            PairSet(tasks, fields).held_out(config.evaluation.prompts)

    @cached_property
    def held_out(self) -> list[Pair]:
        """Held-out pairs with a label."""
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
        sums |= more
        scores_P2 = torch.stack([states.chosen_P, states.rejected_P], 1).detach()
        return Loss(
            total=torch.stack(list(parts.values())).sum(),
            ids=[pair.task.id for pair in micro.pairs],
            parts={name: part.detach() for name, part in parts.items()},
            rows={"scores of the pair": scores_P2},
            sums=sums,
        )

    def finish(self, step: int, batch: Batch[Answers], result: StepResult) -> StepReport:
        answers, found = batch.rendered, result.sums
        chosen_N, rejected_N = found["chosen"], found["rejected"]
        self.store(step, lambda: stored_pairs(step, "train", answers, chosen_N, rejected_N))
        self.done = step + 1
        metrics = {
            **length_metrics(answers),
            "rewards/chosen": float(chosen_N.mean()),
            "rewards/rejected": float(rejected_N.mean()),
            "rewards/margins": float((chosen_N - rejected_N).mean()),
        }
        right = [mark for mark in _right(answers.pairs, chosen_N - rejected_N) if mark is not None]
        if right:
            metrics["rewards/accuracies"] = sum(right) / len(right)
        return StepReport(metrics | self.terms.finish(step, found))

    def evaluate(self, step: int) -> HeldOutScores | None:
        """The accuracy on held-out pairs, ties left out; 0.5 where both answers score the same."""
        pairs = self.held_out
        if not pairs:
            return None
        answers = self.render(pairs)
        chosen_N, rejected_N = self._scores(answers)
        samples = stored_pairs(step, "eval:held_out", answers, chosen_N, rejected_N)
        marks = _right(pairs, chosen_N - rejected_N)
        return HeldOutScores(marks, "accuracy", samples)

    def write(self, folder: Path) -> None:
        """The card of the model: its scores on the held-out pairs of the newest evaluation."""
        newest = self.newest_evaluation()
        if newest is None:
            return
        step, scored = newest[0].step, [self._scored(sample) for sample in newest[1]]
        shares = estimate(newest[0].summary)
        if scored and shares is not None:
            size, accuracy = self.max_tokens, (shares.value, shares.low, shares.high)
            card = RewardModelCard.of(scored, step=step, max_tokens=size, accuracy=accuracy)
            write_card(folder, card)

    def _scores(self, answers: Answers) -> tuple[Tensor, Tensor]:
        module = self.setup.trainable.module

        def scores(micro: PairMicro) -> tuple[Tensor, Tensor]:
            states = self._states(module, micro)
            return states.chosen_P.double(), states.rejected_P.double()

        chosen_N, rejected_N = over_pairs(self.setup, answers, scores)
        return chosen_N.cpu(), rejected_N.cpu()

    def hidden(self, hidden_RSD: Tensor, micro: PairMicro) -> Tensor:
        return super().hidden(hidden_RSD, micro).to(self.head.weight.dtype)

    def _states(self, model: Any, micro: PairMicro) -> PairStates:
        hidden_BD = self.hidden(model(micro.packed.inputs), micro)
        score_B = self.head(hidden_BD)
        return pair_states(hidden_BD, score_B[micro.chosen_P], score_B[micro.rejected_P], micro)

    def _scored(self, sample: StoredSample) -> ScoredPair:
        """A stored pair's scores and texts."""
        pair, scores = self.pairs.read(sample.task), sample.reward.components
        chosen, rejected = scores["chosen"], scores["rejected"]
        assert chosen is not None
        assert rejected is not None
        return ScoredPair(chosen, rejected, pair.chosen, pair.rejected, pair.target)


ALGORITHM = RewardModelAlgorithm


def pair_fields(settings: RewardModelTrain) -> PairFields:
    """Which task fields hold a pair."""
    return PairFields(
        chosen=settings.chosen,
        rejected=settings.rejected,
        margin=settings.margin,
        tie=settings.tie,
        target=settings.target,
        ties=settings.ties,
        bad=settings.bad_pairs,
    )


def _right(pairs: Sequence[Pair], difference_N: Tensor) -> list[float | None]:
    """1 where the scores agree with the label, 0 where not; None for a tie, which has no label."""
    marks = wins(difference_N).tolist()
    return [
        None if pair.target == 0.5 else mark if pair.target > 0.5 else 1 - mark
        for pair, mark in zip(pairs, marks, strict=True)
    ]


# --- pairs in the store


def _meaning(pair: Pair, parts: Sequence[Reward]) -> str:
    """What the number of a pair is, and how it stands, for `why` and the viewer."""
    difference = float(parts[0].value or 0.0) - float(parts[1].value or 0.0)
    label = "a tie" if pair.target == 0.5 else f"{pair.target:g} by its label"
    return (
        "the chosen answer's score less the rejected one's; chosen is better with probability "
        f"{sigmoid(difference):.3f}, {label}"
    )


def stored_pairs(
    step: int, split: str, answers: Answers, chosen_N: Tensor, rejected_N: Tensor
) -> list[StoredSample]:
    """One sample a pair: the preferred answer, and the scores of both as parts of the margin."""
    scores = zip(chosen_N.tolist(), rejected_N.tolist(), strict=True)
    found = []
    for i, (pair, (chosen, rejected)) in enumerate(zip(answers.pairs, scores, strict=True)):
        # The sample's own text is the preferred answer; a page of the pair shows both.
        other = (Evidence(REJECTED, pair.rejected),)
        parts = (
            Reward("chosen", chosen),
            Reward("rejected", rejected, weight=-1.0, evidence=other),
        )
        sides = [answers.trajectories[place[i]] for place in (answers.chosen, answers.rejected)]
        tokens = (sides[0].trained_tokens, sides[1].trained_tokens)
        record = pair_record(pair, tokens, has_texts=split != "train")
        # A copy: pairs of one prompt may share an answer.
        trajectory = msgspec.structs.replace(sides[0], info={**sides[0].info, KEY: record})
        found.append(
            StoredSample(
                step=step,
                split=split,
                index=i,
                task=pair.task,
                trajectory=trajectory,
                reward=Reward(
                    "margin", chosen - rejected, parts=parts, reason=_meaning(pair, parts)
                ),
                advantage=None,
                keep=split == "train",
            )
        )
    return found
