"""Direct preference optimisation: of two answers to a task, one is preferred.

    train = { kind = "dpo", beta = 0.1 }                    # tasks with fields `chosen`, `rejected`
    train = { kind = "dpo", loss = "ipo", beta = 0.05 }

The losses are those of `policy/preference.py`. The reference is the model as the training (or the
stage) begins; it is computed beside the policy on the same micro-batch, so nothing is kept between
steps. Both answers share the prompt's row where it is short enough, as the rollouts of a group do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from burnish.errors import UserError
from burnish.policy.preference import sigmoid_loss, squared_loss, summed_logp
from burnish.records import Reward, Task, Trajectory
from burnish.store import StoredSample
from burnish.training.algorithm import (
    Algorithm,
    HeldOutScores,
    Loss,
    Setup,
    StepReport,
    StepResult,
)
from burnish.training.experts import Experts
from burnish.training.forecast import Keys, Workload
from burnish.training.forward import CausalModel, token_scores
from burnish.training.metrics import held_out_rewards
from burnish.training.packing import PackedBatch, Row, make_rows, pack
from burnish.training.pairs import wins, within

if TYPE_CHECKING:
    from burnish.config.schema import Config, DpoTrain
    from burnish.training.data import Data


MEASURED = 64
"""Pairs whose lengths are measured for the forecast."""


class Pairs(NamedTuple):
    """The pairs of a step."""

    step: int
    tasks: Sequence[Task]
    answers: Sequence[Trajectory]
    """Chosen and rejected of the first task, of the second, ..."""


class PairMicro(NamedTuple):
    """Whole pairs in one packed batch."""

    packed: PackedBatch
    pairs_P: Tensor
    """Place of each pair in its step."""
    chosen_P: Tensor
    """Row of each pair's chosen answer in the (B, T) tensors of the pass."""
    rejected_P: Tensor
    ids: Sequence[str]
    total: int
    """Pairs of the whole update."""


class Scores(NamedTuple):
    """Of each pair of a pass, (P,) each."""

    loss: Tensor
    margin: Tensor
    chosen_logp: Tensor
    rejected_logp: Tensor
    chosen_reward: Tensor
    """`beta` times the log-ratio to the reference: DPO's implicit reward."""
    rejected_reward: Tensor


class DPOAlgorithm(Algorithm[Pairs, PairMicro]):
    """Raises the preferred answer of each pair over the other, relative to the reference."""

    samples_answers = False

    def __init__(self, setup: Setup, settings: DpoTrain) -> None:
        self.setup = setup
        self.settings = settings
        self.is_mean = settings.loss == "ipo" or settings.length_normalised
        self.experts = Experts(
            setup.data.open(settings.task),
            setup.trainable.loaded.tokenizer,
            seed=setup.seeds.for_("pairs"),
            field=settings.chosen,
            beside=settings.rejected,
            max_tokens=setup.trainable.module.longest_row(0),
        )
        if not settings.reference_free:
            setup.trainable.freeze_reference()

    @classmethod
    def check(cls, config: Config, settings: DpoTrain, data: Data) -> None:
        tasks = data.open(settings.task)
        missing = [
            name for name in (settings.chosen, settings.rejected) if name not in tasks.fields
        ]
        if missing:
            known = ", ".join(sorted(tasks.fields)) or "none"
            raise UserError(
                f"train.kind = 'dpo': task set '{tasks.name}' has no field '{missing[0]}'; it has "
                f"{known}. Name the fields of the two answers in train.chosen and train.rejected."
            )
        if settings.loss == "ipo" and settings.label_smoothing:
            raise UserError(
                f"train.label_smoothing = {settings.label_smoothing:g} with loss = 'ipo'; expected "
                "0: only the sigmoid loss has labels to smooth."
            )

    def batch(self, step: int) -> Pairs:
        return self._pairs(step, self.experts.draw(step, self.settings.batch))

    def micro_batches(self, batch: Pairs, tokens: int) -> Iterator[PairMicro]:
        places = self.setup.world.share(range(len(batch.tasks)))
        share = self.setup.batches.share_prompts
        share = share and getattr(self.setup.trainable.module, "packs", True)
        rows = [_rows_of(batch.answers, place, share) for place in places]
        for group in within(list(zip(places, rows, strict=True)), tokens):
            yield self._pack(batch, group)

    def loss(self, model: Any, micro: PairMicro) -> Loss:
        scores = self._score(model, micro)
        size = torch.zeros(micro.total, dtype=torch.float64, device=scores.loss.device)
        sums = {
            name: size.index_put((micro.pairs_P,), value.detach().double())
            for name, value in scores._asdict().items()
        }
        return Loss(
            total=scores.loss.sum() / micro.total,
            ids=micro.ids,
            rows={"logprobs of the pair": torch.stack([s.detach() for s in scores[2:4]], 1)},
            sums=sums,
        )

    def workload(self) -> Workload:
        shown = self._pairs(0, self.experts.draw(0, min(self.settings.batch, MEASURED))).answers
        answer = max(one.trained_tokens for one in shown)
        prompt = max(one.prompt_length for one in shown)
        has_reference = not self.settings.reference_free
        keys = Keys("train.batch", "", "", "train.reference_free=true")
        return Workload(self.settings.batch, 2, prompt, answer, False, has_reference, keys=keys)

    def finish(self, step: int, batch: Pairs, result: StepResult) -> StepReport:
        found = result.sums
        lengths = [answer.trained_tokens for answer in batch.answers]
        if self.setup.world.is_main and not self.setup.stage:
            self._store(step, batch, found["chosen_reward"], found["rejected_reward"])
        margin = found["chosen_reward"] - found["rejected_reward"]
        metrics = {
            "rewards/chosen": float(found["chosen_reward"].mean()),
            "rewards/rejected": float(found["rejected_reward"].mean()),
            "rewards/margins": float(margin.mean()),
            "rewards/accuracies": float(wins(found["margin"]).mean()),
            "logps/chosen": float(found["chosen_logp"].mean()),
            "logps/rejected": float(found["rejected_logp"].mean()),
            "length/chosen": sum(lengths[::2]) / len(batch.tasks),
            "length/rejected": sum(lengths[1::2]) / len(batch.tasks),
            "length/tokens": float(sum(lengths)),
        }
        return StepReport(metrics)

    def evaluate(self, step: int) -> HeldOutScores | None:
        """The rewards of held-out answers; without rewards, the accuracy on held-out pairs.

        1 where the preferred answer has gained more than the other, 0.5 where both gained the same.
        """
        if self.setup.scorer is not None:
            return held_out_rewards(self.setup, step)
        tasks = self.experts.tasks.held_out(self.setup.config.evaluation.prompts)
        batch = self._pairs(step, [task for task in tasks if self.experts.has_answers(task)])
        if not batch.tasks:
            return None
        batches, module = self.setup.batches, self.setup.trainable.module

        def work() -> Tensor:
            margins = torch.zeros(len(batch.tasks), dtype=torch.float64, device=batches.device)
            for micro in self.micro_batches(batch, batches.tokens):
                margins[micro.pairs_P] = self._score(module, micro).margin.double()
            return margins

        with torch.no_grad():
            margins = batches.within_memory(work)
        self.setup.world.add([margins])
        return HeldOutScores(wins(margins.cpu()).tolist())

    def _pairs(self, step: int, tasks: Sequence[Task]) -> Pairs:
        names = (self.settings.chosen, self.settings.rejected)
        answers = [
            self.experts.as_trajectory(task, i, name)
            for i, task in enumerate(tasks)
            for name in names
        ]
        return Pairs(step, tasks, answers)

    def _pack(self, batch: Pairs, group: Sequence[tuple[int, Sequence[Row]]]) -> PairMicro:
        device = self.setup.trainable.device
        packed = pack([row for _, rows in group for row in rows], batch.answers, device)
        row_of = {member: row for row, member in enumerate(packed.members)}
        places = [place for place, _ in group]
        numbers_3P = torch.tensor(
            [places, [row_of[2 * p] for p in places], [row_of[2 * p + 1] for p in places]]
        )
        ids = [batch.tasks[place].id for place in places]
        pairs_P, chosen_P, rejected_P = numbers_3P.to(device)
        return PairMicro(packed, pairs_P, chosen_P, rejected_P, ids, len(batch.tasks))

    def _score(self, model: CausalModel, micro: PairMicro) -> Scores:
        settings = self.settings
        own = self._answers(model, micro)
        if settings.reference_free:
            other = torch.zeros_like(own)
        else:
            with torch.no_grad(), self.setup.trainable.reference() as reference:
                other = self._answers(reference, micro)
        ratio_2P = own - other
        margin_P = ratio_2P[0] - ratio_2P[1]
        if settings.loss == "ipo":
            loss_P = squared_loss(margin_P, settings.beta)
        else:
            loss_P = sigmoid_loss(margin_P, settings.beta, settings.label_smoothing)
        return Scores(loss_P, margin_P, *own, *(settings.beta * ratio_2P))

    def _answers(self, model: CausalModel, micro: PairMicro) -> Tensor:
        """Log-probs of chosen and rejected answers, (2, P)."""
        logp_BT = token_scores(model, micro.packed, 1.0).logp_BT
        mask_BT = micro.packed.trained_BT
        shared_B = None
        if self.settings.ld_alpha < 1:
            lengths_B = mask_BT.sum(1)
            shared_P = torch.minimum(lengths_B[micro.chosen_P], lengths_B[micro.rejected_P])
            shared_B = lengths_B.index_put((micro.chosen_P,), shared_P)
            shared_B = shared_B.index_put((micro.rejected_P,), shared_P)
        logp_B = summed_logp(logp_BT, mask_BT, self.is_mean, shared_B, self.settings.ld_alpha)
        return torch.stack([logp_B[micro.chosen_P], logp_B[micro.rejected_P]])

    def _store(self, step: int, batch: Pairs, chosen_P: Tensor, rejected_P: Tensor) -> None:
        """Both answers of each pair, with their implicit rewards."""
        values = torch.stack([chosen_P, rejected_P], 1).flatten().tolist()
        samples = [
            StoredSample(
                step=step,
                split="train",
                index=i,
                task=batch.tasks[i // 2],
                trajectory=answer,
                reward=Reward("implicit", value, reason=self._meaning(values, i)),
            )
            for i, (answer, value) in enumerate(zip(batch.answers, values, strict=True))
        ]
        if self.setup.store.rollouts(step) is None:
            self.setup.store.append_rollouts(step, samples)

    def _meaning(self, values: Sequence[float], place: int) -> str:
        """What the number of one answer is, and how its pair stands, for `why` and the viewer."""
        chosen, rejected = values[place - place % 2 :][:2]
        which = "rejected" if place % 2 else "chosen"
        log_prob = "mean log-prob a token" if self.is_mean else "log-prob"
        less = "" if self.settings.reference_free else ", less the reference model's"
        side = "ranks the pair right" if chosen > rejected else "does not rank the pair right"
        return (
            f"the {which} answer's {log_prob}{less}, times beta {self.settings.beta:g}; margin chosen "
            f"- rejected {chosen - rejected:+.4g}, which {side}"
        )


ALGORITHM = DPOAlgorithm


def _rows_of(answers: Sequence[Trajectory], place: int, share: bool) -> list[Row]:
    """The rows of one pair: one where both answers share the prompt, else two."""
    first = 2 * place
    rows = make_rows(answers[first : first + 2], share)
    return [Row(row.prefix, tuple(first + m for m in row.members), row.tokens) for row in rows]
