"""What the trainings on pairs share: drawing, passes, and the terms of `train.terms`.

A term (`rewards/models/term.py`) sees the last hidden state of each answer and its score: that of the
scalar head for `reward_model`, the implicit reward for `dpo`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
from torch import Tensor

from burnish.errors import GuardTripped, UserError
from burnish.lm.hardware import is_device_full
from burnish.policy.state import with_prefix
from burnish.rewards.models.dir_term import DirTerm
from burnish.rewards.models.term import (
    Pair,
    PairStates,
    Term,
    TermConfig,
    TermContext,
    TermState,
)
from burnish.source import describe
from burnish.training.algorithm import AlgorithmState, Setup
from burnish.training.data import missing_field
from burnish.training.forecast import MEASURED, Workload, measured
from burnish.training.labelled import Batch, RowAlgorithm
from burnish.training.pairs import (
    Answers,
    BothSpans,
    PairMicro,
    PairSet,
    last_states,
    pair_micro_batches,
    render_pairs,
)

if TYPE_CHECKING:
    from burnish.config.schema import Config
    from burnish.training.data import Data

logger = logging.getLogger(__name__)


class PairTerms:
    """The terms of one algorithm's loss, by name and in their order; false without any."""

    def __init__(
        self, settings: Sequence[TermConfig], setup: Setup, pairs: Callable[[int], Sequence[Pair]]
    ) -> None:
        """`pairs` gives the first so many training pairs."""
        loaded = setup.trainable.loaded
        self.by_name: dict[str, Term] = {}
        for one in settings:
            if isinstance(one, DirTerm) and one.warmup_steps >= setup.steps:
                logger.warning(
                    "train.terms: '%s' warms up for %d of %d steps: its penalty never begins.",
                    one.title, one.warmup_steps, setup.steps,
                )  # fmt: skip
            context = TermContext(
                name=one.title,
                width=loaded.module.head_weight.shape[-1],
                device=loaded.device,
                seed=setup.seeds.for_("term", one.title),
                pairs=pairs,
                tokens=lambda text: len(loaded.tokenizer.encode(text)),
            )
            with _running(one.title, " when it was made"):
                self.by_name[one.title] = one.build(context)

    def __bool__(self) -> bool:
        return bool(self.by_name)

    def __getitem__(self, name: str) -> Term:
        return self.by_name[name]

    def begin(
        self, step: int, pairs: Sequence[Pair], hidden: Callable[[], tuple[Tensor, Tensor]]
    ) -> None:
        """Let each term get ready for an update on these pairs."""

        @cache  # Computed where a term asks, and once for all of them.
        def once() -> tuple[Tensor, Tensor]:
            try:
                return hidden()
            except Exception as error:
                raise _NotTheTerm(error) from error

        for name, term in self.by_name.items():
            try:
                with _running(name, f" at step {step + 1}"):
                    term.begin(step, pairs, once)
            except _NotTheTerm as found:
                raise found.error  # noqa: B904 - as it was, without the marker

    def loss(self, states: PairStates, total: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Each term of a micro-batch by its name, with its graph; and what `finish` adds up."""
        parts: dict[str, Tensor] = {}
        sums: dict[str, Tensor] = {}
        for name, term in self.by_name.items():
            with _running(name):
                found = term.loss(states, total)
                # Of one number, in the precision of the scores; its value is not looked at.
                parts[name] = found.total.to(states.chosen_P).reshape(())
                sums |= {f"{name}/{key}": value for key, value in found.sums.items()}
        return parts, sums

    def finish(self, step: int, sums: Mapping[str, Tensor]) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for name, term in self.by_name.items():
            with _running(name, f" at step {step + 1}"):
                found = term.finish(step, with_prefix(sums, f"{name}/"))
                for key, one in found.items():  # a number of any kind; None is stored as no value
                    metrics[f"terms/{name}/{key}"] = math.nan if one is None else float(one)
        return metrics

    def state(self) -> AlgorithmState:
        values: dict[str, Any] = {}
        tensors: dict[str, Tensor] = {}
        for name, term in self.by_name.items():
            with _running(name, " when its state was asked for"):
                state = term.state()
                # What a checkpoint can keep, looked at before anything is written.
                msgspec.json.encode(state.values)
                values[name] = dict(state.values)
                tensors |= {
                    f"{name}/{k}": tensor.contiguous() for k, tensor in state.tensors.items()
                }
        return AlgorithmState({"terms": values} if values else {}, tensors)

    def restore(self, state: AlgorithmState) -> None:
        for name, term in self.by_name.items():
            with _running(name, " when it was continued"):
                term.restore(
                    TermState(state.values["terms"][name], with_prefix(state.tensors, f"{name}/"))
                )


class PairAlgorithm(RowAlgorithm[Pair, Answers, PairMicro]):
    """Trains on pairs of answers; its terms see the last hidden states and the scores of both."""

    terms: PairTerms
    pairs: PairSet
    spans: BothSpans

    @classmethod
    def faults(cls, config: Config, settings: Any, data: Data) -> Iterator[str]:
        tasks = data.open(settings.task)
        for name in (settings.chosen, settings.rejected, *settings.labels):
            yield from missing_field(tasks, name, "train.chosen, train.rejected or a label's field")
        if settings.bad_pairs == "refuse":
            pairs = PairSet(tasks, settings)
            # Where rewards are evaluated, held-out tasks need no pairs; nor do those of a stage.
            is_rewarded = config.rewards and not cls.trains_score_head
            if settings is config.train and not is_rewarded:
                pairs.held_out(config.evaluation.prompts)

    def open_pairs(self, spans: BothSpans, seed: int, *, together: bool) -> None:
        """With `together`, the pairs of one prompt are drawn side by side."""
        self.spans = spans
        self.rows = self.pairs = PairSet(
            self.setup.data.open(self.settings.task),
            self.settings,
            seed=seed,
            spans=spans,
            max_tokens=self.max_tokens,
            together=together,
        )
        self.terms = PairTerms(self.settings.terms, self.setup, self.pairs.first)

    def render(self, pairs: Sequence[Pair]) -> Answers:
        return render_pairs(pairs, self.spans)

    def cut(self, answers: Answers, tokens: int) -> Iterator[PairMicro]:
        setup, module = self.setup, self.setup.trainable.module
        share = setup.batches.share_prompts and getattr(module, "packs", True)
        device = setup.trainable.device
        return pair_micro_batches(answers, tokens, share=share, world=setup.world, device=device)

    def over_pairs(
        self, answers: Answers, of: Callable[[PairMicro], Sequence[Tensor]]
    ) -> list[Tensor]:
        """Values of all pairs, (N, ...) each."""
        return self.compute(answers, len(answers.pairs), lambda one: (one.places_P, of(one)))

    def updates(self, batch: Batch[Answers]) -> Sequence[Batch[Answers]]:
        answers = batch.rendered
        self.terms.begin(batch.step, answers.pairs, lambda: self.hidden_states(answers))
        return [batch]

    def hidden(self, hidden_RSD: Tensor, micro: PairMicro) -> Tensor:
        """The state that a score is read from, of each answer of a pass: (B, D)."""
        return last_states(hidden_RSD, micro.packed)

    def hidden_states(self, answers: Answers) -> tuple[Tensor, Tensor]:
        """Detached last hidden states of all pairs with the weights of now, (N, D) each."""
        module = self.setup.trainable.module

        def states(micro: PairMicro) -> tuple[Tensor, Tensor]:
            hidden_BD = self.hidden(module(micro.packed.inputs), micro)
            return hidden_BD[micro.chosen_P], hidden_BD[micro.rejected_P]

        chosen_ND, rejected_ND = self.over_pairs(answers, states)
        return chosen_ND, rejected_ND

    def workload(self) -> Workload:
        shown = self.render(self.pairs.first(min(self.settings.batch, MEASURED))).trajectories
        return measured(self.settings.batch, shown, samples=2)

    def state(self) -> AlgorithmState:
        return self.terms.state()

    def restore(self, state: AlgorithmState) -> None:
        self.terms.restore(state)


class _NotTheTerm(Exception):
    """Around what the trainer's own pass raised while a term was running."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def _running(name: str, when: str = "") -> Iterator[None]:
    """Turn what a term raises into one line that names it; a full device is not its fault."""
    try:
        yield
    except (UserError, GuardTripped, _NotTheTerm):
        raise
    # Boundary: a term may be the user's own code, and so may what it calls for every pair.
    except Exception as error:
        if is_device_full(error):
            raise
        raise UserError(
            f"train.terms: '{name}' failed{when}: {describe(error)}. Checkpoints stay: mend it, "
            "and start a new run or leave the term out"
        ) from error
