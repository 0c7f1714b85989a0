"""Direct preference optimisation: of two answers to a task, one is preferred.

The losses are those of `policy/preference.py`. The reference is the model as the training (or the
stage) begins, computed beside the policy on the same micro-batch. `terms` sees the policy's hidden
state at each answer's last token, and the implicit rewards as scores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from burnish.lm.tokenizer import end_of_turn
from burnish.policy.preference import sigmoid_loss, squared_loss, summed_logp
from burnish.records import Reward, Span
from burnish.rewards.models.term import Pair
from burnish.seeds import derive
from burnish.store import StoredSample
from burnish.training.algorithm import HeldOutScores, Loss, Setup, StepReport, StepResult, stored
from burnish.training.data import answer_spans
from burnish.training.forecast import Workload
from burnish.training.labelled import Batch, in_place
from burnish.training.metrics import held_out_rewards
from burnish.training.packing import CausalModel, token_scores
from burnish.training.pair_terms import PairAlgorithm
from burnish.training.pairs import Answers, PairMicro, pair_states, step_metrics, wins

if TYPE_CHECKING:
    from burnish.config.schema import DpoTrain


class Scores(NamedTuple):
    loss: Tensor
    margin: Tensor
    chosen_logp: Tensor
    rejected_logp: Tensor
    chosen_reward: Tensor
    """`beta` times the log-ratio to the reference: DPO's implicit reward."""
    rejected_reward: Tensor


class DPOAlgorithm(PairAlgorithm):
    shares_model = True

    def __init__(self, setup: Setup, settings: DpoTrain) -> None:
        super().__init__(setup, settings)
        self.is_mean = settings.loss == "ipo" or settings.length_normalised
        tokenizer, end = self.tokenizer, end_of_turn(self.tokenizer)

        def both_answers(pair: Pair) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
            messages = pair.task.messages
            chosen = answer_spans(tokenizer, messages, pair.chosen, end)
            return chosen, answer_spans(tokenizer, messages, pair.rejected, end)

        # The order of `Experts` with one stratum, "": a run begun with it goes on in it. Few pairs
        # make a step: those of one prompt would be most of it.
        seed = derive(setup.seeds.for_("pairs"), "stratum", "")
        self.open_pairs(both_answers, seed, together=False)
        setup.trainable.freeze_reference()

    def loss(self, model: Any, micro: PairMicro) -> Loss:
        hidden_RSD = model(micro.packed.inputs)
        scores = self._score(model, micro, hidden_RSD)
        sums = {
            name: in_place(value, micro.places_P, micro.total)
            for name, value in scores._asdict().items()
        }
        total, parts = scores.loss.sum() / micro.total, dict[str, Tensor]()
        if self.terms:
            hidden_BD = self.hidden(hidden_RSD, micro)
            states = pair_states(hidden_BD, scores.chosen_reward, scores.rejected_reward, micro)
            terms, more = self.terms.loss(states, micro.total)
            parts = {"preference": total, **terms}
            total = torch.stack(list(parts.values())).sum()
            sums |= more
        return Loss(
            total=total,
            ids=[pair.task.id for pair in micro.pairs],
            parts={name: part.detach() for name, part in parts.items()},
            rows={"logprobs of the pair": torch.stack([s.detach() for s in scores[2:4]], 1)},
            sums=sums,
        )

    def workload(self) -> Workload:
        return super().workload()._replace(has_reference=True)

    def finish(self, step: int, batch: Batch[Answers], result: StepResult) -> StepReport:
        answers, found = batch.rendered, result.sums
        chosen_P, rejected_P = found["chosen_reward"], found["rejected_reward"]
        if not self.setup.stage:
            self.store(step, lambda: self._samples(step, answers, chosen_P, rejected_P))
        metrics = {
            **step_metrics(answers, chosen_P, rejected_P),
            "rewards/accuracies": float(wins(found["margin"]).mean()),
            "logps/chosen": float(found["chosen_logp"].mean()),
            "logps/rejected": float(found["rejected_logp"].mean()),
        }
        return StepReport(metrics | self.terms.finish(step, found))

    def evaluate(self, step: int) -> HeldOutScores | None:
        """The rewards of held-out answers; without rewards, the accuracy on held-out pairs.

        1 where the preferred answer has gained more than the other, 0.5 where both gained the same.
        """
        if self.setup.scorer is not None:
            return held_out_rewards(self.setup, step)
        if not self.held_out:
            return None
        module = self.setup.trainable.module

        def margins(micro: PairMicro) -> tuple[Tensor]:
            hidden_RSD = module(micro.packed.inputs)
            return (self._score(module, micro, hidden_RSD).margin.double(),)

        (margin_N,) = self.over_pairs(self.render(self.held_out), margins)
        return HeldOutScores(wins(margin_N.cpu()).tolist(), "accuracy")

    def _score(self, model: CausalModel, micro: PairMicro, hidden_RSD: Tensor) -> Scores:
        settings = self.settings
        own = self._answers(model, micro, hidden_RSD)
        with torch.no_grad(), self.setup.trainable.reference() as reference:
            other = self._answers(reference, micro)
        ratio_2P = own - other
        margin_P = ratio_2P[0] - ratio_2P[1]
        if settings.loss == "ipo":
            loss_P = squared_loss(margin_P, settings.beta)
        else:
            loss_P = sigmoid_loss(margin_P, settings.beta)
        return Scores(loss_P, margin_P, *own, *(settings.beta * ratio_2P))

    def _answers(
        self, model: CausalModel, micro: PairMicro, hidden_RSD: Tensor | None = None
    ) -> Tensor:
        logp_BT = token_scores(model, micro.packed, 1.0, hidden_RSD=hidden_RSD).logp_BT
        mask_BT = micro.packed.trained_BT
        shared_B = None
        if self.settings.ld_alpha < 1:
            lengths_B = mask_BT.sum(1)
            shared_P = torch.minimum(lengths_B[micro.chosen_P], lengths_B[micro.rejected_P])
            shared_B = lengths_B.index_put((micro.chosen_P,), shared_P)
            shared_B = shared_B.index_put((micro.rejected_P,), shared_P)
        logp_B = summed_logp(logp_BT, mask_BT, self.is_mean, shared_B, self.settings.ld_alpha)
        return torch.stack([logp_B[micro.chosen_P], logp_B[micro.rejected_P]])

    def _samples(
        self, step: int, answers: Answers, chosen_P: Tensor, rejected_P: Tensor
    ) -> list[StoredSample]:
        settings, rows = self.settings, []
        log_prob = "mean log-prob a token" if self.is_mean else "log-prob"
        scores = zip(chosen_P.tolist(), rejected_P.tolist(), strict=True)
        for place, (pair, (chosen, rejected)) in enumerate(zip(answers.pairs, scores, strict=True)):
            side = "ranks the pair right" if chosen > rejected else "does not rank the pair right"
            for which, value, rows_of in (
                ("chosen", chosen, answers.chosen),
                ("rejected", rejected, answers.rejected),
            ):
                meaning = (
                    f"the {which} answer's {log_prob}, less the reference model's, times beta {settings.beta:g}; margin "
                    f"chosen - rejected {chosen - rejected:+.4g}, which {side}"
                )
                trajectory = answers.trajectories[rows_of[place]]
                rows.append((pair.task, trajectory, Reward("implicit", value, reason=meaning)))
        return stored(step, "train", rows)


ALGORITHM = DPOAlgorithm
