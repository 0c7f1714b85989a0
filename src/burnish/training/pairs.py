"""Preference pairs: read from tasks, drawn prompt by prompt, rendered and packed for a pass.

Several pairs may have one prompt; they are drawn together, and an answer that stands in more than
one of them is computed once. Answers to one prompt share its row where that is short enough.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from burnish.config.schema import PairTrain, RewardModelTrain
from burnish.lm.base import ids_of, media_of
from burnish.lm.scalar_head import scored_ids
from burnish.lm.tokenizer import Tokenizer
from burnish.records import Author, MediaPart, Message, Span, Task, Trajectory
from burnish.rewards.models.term import Pair, PairStates
from burnish.rollouts.session import naming_task
from burnish.tasks.base import TaskSet, content_key
from burnish.tasks.mapping import RowError, read_messages
from burnish.tasks.rows import says_tie
from burnish.training.devices import World
from burnish.training.labelled import LabelledSet, UnusableRow, surely_fit
from burnish.training.packing import PackedBatch, Row, make_rows, pack

Unit = TypeVar("Unit")


LARGEST_LABEL = 1e6
"""Of a margin: scores are compared in float32."""

BothSpans = Callable[[Pair], tuple[tuple[Span, ...], tuple[Span, ...]]]
"""The tokens of a pair: prompt and chosen answer, prompt and rejected answer."""


class Answers(NamedTuple):
    pairs: Sequence[Pair]
    trajectories: Sequence[Trajectory]
    chosen: Sequence[int]
    """Place of each pair's preferred answer among the trajectories."""
    rejected: Sequence[int]


class PairMicro(NamedTuple):
    packed: PackedBatch
    places_P: Tensor
    chosen_P: Tensor
    """Row of each pair's chosen answer in the (B, T) tensors of the pass."""
    rejected_P: Tensor
    pairs: Sequence[Pair]
    total: int


class PairSet(LabelledSet[Pair]):
    def __init__(
        self,
        tasks: TaskSet,
        settings: PairTrain,
        *,
        seed: int = 0,
        spans: BothSpans | None = None,
        max_tokens: int = 0,
        together: bool = True,
    ) -> None:
        """Pairs with more than `max_tokens` cannot be used; without `spans` none is measured."""
        has_ties = isinstance(settings, RewardModelTrain) and settings.ties == "half"
        super().__init__(
            tasks,
            lambda task: read_pair(task, settings),
            what="pairs",
            bad=settings.bad_pairs,
            seed=seed,
            keeps=lambda pair: pair.target != 0.5 or has_ties,
            fits=lambda pair: spans is None or _fits(pair, settings, spans, max_tokens),
            max_tokens=max_tokens,
            together=together,
        )


def read_pair(task: Task, settings: PairTrain) -> Pair:
    is_labelled = isinstance(settings, RewardModelTrain)
    chosen, rejected = (
        _answer(task.fields.get(name), name, takes_messages=is_labelled)
        for name in (settings.chosen, settings.rejected)
    )
    margin, target = 0.0, 1.0
    if isinstance(settings, RewardModelTrain):
        is_tie = says_tie(task.fields.get(settings.tie)) if settings.tie else False
        if is_tie is None:
            raise UnusableRow(f"a '{settings.tie}' that is neither true nor false")
        margin, target = _number(task, settings.margin, 0.0), _number(task, settings.target, 1.0)
        if not 0 <= target <= 1:
            raise UnusableRow(f"a '{settings.target}' outside of 0 to 1")
        target = 0.5 if is_tie else target
    if chosen == rejected and target != 0.5:
        raise UnusableRow("two equal answers")
    return Pair(task, chosen, rejected, margin, target)


def signed_margin(pair: Pair) -> float:
    """The margin as `chosen` minus `rejected` has it: none of a tie, below 0 where the other is better.

    A pair the other way round, with its target, then has the same loss.
    """
    if pair.target == 0.5:
        return 0.0
    return pair.margin if pair.target > 0.5 else -pair.margin


def are_alike(chosen: str, rejected: str) -> bool:
    """True where two texts differ in spaces, letter case or compatibility forms at most."""
    starts = (_folded(text.lstrip()[:1]) for text in (chosen, rejected))  # most differ here
    return len(set(starts)) == 1 and _folded(chosen) == _folded(rejected)


def _folded(text: str) -> str:
    return "".join(unicodedata.normalize("NFKC", text).casefold().split())


def _answer(value: Any, name: str, *, takes_messages: bool) -> str:
    text = value
    if not isinstance(value, str):
        if not takes_messages:
            raise UnusableRow(f"a '{name}' that is not the assistant's words as text")
        try:
            turns = read_messages(value, name)
        except RowError:
            raise UnusableRow(f"a '{name}' that is neither text nor chat messages") from None
        text = "\n".join(turn.text for turn in turns if turn.role == "assistant")
    if not text.strip():
        raise UnusableRow(f"an empty '{name}'")
    return str(text)


def _number(task: Task, name: str, default: float) -> float:
    """The number in a field; `default` without a field, or where it is empty."""
    value = task.fields.get(name) if name else None
    if value is None:
        return default
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # Compared and not converted: a whole number may be larger than any float.
    if not is_number or not -LARGEST_LABEL <= value <= LARGEST_LABEL:
        raise UnusableRow(f"a '{name}' that is no finite number of at most {LARGEST_LABEL:g}")
    return float(value)


def conversation(task: Task, value: Any) -> tuple[Message, ...]:
    """The whole conversation that an answer ends: text, turns, or a list with the prompt in it."""
    if isinstance(value, str):
        return (*task.messages, Message("assistant", value))
    turns = read_messages(value, "answer")
    return turns if turns[0].role in ("system", "user") else (*task.messages, *turns)


def _fits(pair: Pair, settings: PairTrain, spans: BothSpans, max_tokens: int) -> bool:
    """Whether both conversations are within the limit; only long texts are measured.

    A label for answers that the tokenizer or the template makes equal teaches nothing and would
    count as half right: it raises `UnusableRow`.
    """
    if pair.target != 0.5 and are_alike(pair.chosen, pair.rejected):
        first, second = (ids_of(side) for side in spans(pair))
        if first == second:
            raise UnusableRow("two answers that are the same tokens")
    for name in (settings.chosen, settings.rejected):
        turns = conversation(pair.task, pair.task.fields[name])
        is_short = surely_fit([turn.text for turn in turns], len(turns), max_tokens)
        if not is_short or any(turn.media for turn in turns):
            return all(len(ids_of(side)) <= max_tokens for side in spans(pair))
    return True


def render_pairs(pairs: Sequence[Pair], spans: BothSpans) -> Answers:
    """Both answers of each pair as trajectories; equal ones to one prompt are one trajectory."""
    places: dict[tuple[int, ...], int] = {}
    trajectories: list[Trajectory] = []
    sides: dict[str, list[int]] = {"chosen": [], "rejected": []}
    for number, pair in enumerate(pairs):
        group = f"pair/{content_key(pair.task.messages)}"
        texts = (pair.chosen, pair.rejected)
        with naming_task(pair.task):
            both = spans(pair)
        for (name, found), text, side in zip(sides.items(), texts, both, strict=True):
            place = places.setdefault(ids_of(side), len(trajectories))
            found.append(place)
            if place < len(trajectories):
                continue
            trajectories.append(
                Trajectory(
                    id=f"{pair.task.id}.{name}{number}",
                    task_id=pair.task.id,
                    group=group,
                    spans=side,
                    text=text,
                    role="pair",
                )
            )
    return Answers(pairs, trajectories, **sides)


def scored_spans(
    tokenizer: Tokenizer, settings: PairTrain, pair: Pair
) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    """Both answers as a reward model reads them; the tokens behind the prompt are trained."""
    prompt = tokenizer.render_spans(pair.task.messages)
    before = tuple(ids_of(prompt))

    def spans(name: str) -> tuple[Span, ...]:
        ids = scored_ids(tokenizer, conversation(pair.task, pair.task.fields[name]))
        begin, size = prompt, len(before)
        media: tuple[MediaPart, ...] = ()
        if size >= len(ids) or ids[:size] != before:  # a template that changes the prompt
            begin, media, size = (Span(Author.PROMPT, ids[:1]),), media_of(ids), 1
        rest = ids[size:]
        answer = Span(Author.MODEL, rest, (0.0,) * len(rest), trainable=True, media=media)
        return (*begin, answer)

    return spans(settings.chosen), spans(settings.rejected)


def pair_micro_batches(
    batch: Answers, tokens: int, *, share: bool, world: World, device: torch.device
) -> Iterator[PairMicro]:
    """This process's pairs in passes of about `tokens` tokens, each pair within one pass.

    Prompts are dealt before they are cut: `tokens` may differ between processes.
    """
    units: dict[str, list[int]] = {}
    for place, row in enumerate(batch.chosen):
        units.setdefault(batch.trajectories[row].group, []).append(place)
    own = world.share(list(units.values()))
    parts = [part for unit in own for part in _cut(batch, unit, tokens, share)]
    for group in within(parts, tokens):
        packed = pack([row for _, rows in group for row in rows], batch.trajectories, device)
        # An answer stands in several rows where its prompt's pairs were cut; any of them will do.
        row_of = {member: row for row, member in enumerate(packed.members)}
        places = [place for unit, _ in group for place in unit]
        sides = ([row_of[side[p]] for p in places] for side in (batch.chosen, batch.rejected))
        places_P, chosen_P, rejected_P = torch.tensor([places, *sides]).to(device)
        pairs = [batch.pairs[place] for place in places]
        yield PairMicro(packed, places_P, chosen_P, rejected_P, pairs, len(batch.pairs))


def _cut(
    batch: Answers, unit: list[int], tokens: int, share: bool
) -> list[tuple[list[int], list[Row]]]:
    """The pairs of one prompt with their rows; pair by pair where they do not fit into one pass."""
    rows = _rows(batch, unit, share)
    if len(unit) == 1 or len(rows) * max(row.tokens for row in rows) <= tokens:
        return [(unit, rows)]
    return [([place], _rows(batch, [place], share)) for place in unit]


def _rows(batch: Answers, unit: Sequence[int], share: bool) -> list[Row]:
    sides = (row for place in unit for row in (batch.chosen[place], batch.rejected[place]))
    wanted = list(dict.fromkeys(sides))
    rows = make_rows([batch.trajectories[i] for i in wanted], share)
    return [replace(row, members=tuple(wanted[m] for m in row.members)) for row in rows]


def within(
    units: Sequence[tuple[Unit, list[Row]]], tokens: int
) -> Iterator[list[tuple[Unit, list[Row]]]]:
    """Units of similar length together, so that rows x longest row stays within the tokens."""
    ordered = sorted(units, key=lambda unit: -max(row.tokens for row in unit[1]))
    group: list[tuple[Unit, list[Row]]] = []
    longest = count = 0
    for name, rows in ordered:
        if group and (count + len(rows)) * longest > tokens:
            yield group
            group, longest, count = [], 0, 0
        longest = max(longest, *(row.tokens for row in rows))
        count += len(rows)
        group.append((name, rows))
    if group:
        yield group


def last_states(hidden_RSD: Tensor, packed: PackedBatch) -> Tensor:
    """The hidden state at each answer's last token, (B, D) in at least float32."""
    ends_B = packed.trained_BT.sum(1).cumsum(0) - 1
    places_B = packed.place_N.index_select(0, ends_B)
    hidden_BD = hidden_RSD.flatten(0, 1).index_select(0, places_B)
    return hidden_BD if hidden_BD.dtype == torch.float64 else hidden_BD.float()


def pair_states(
    hidden_BD: Tensor, chosen_P: Tensor, rejected_P: Tensor, micro: PairMicro
) -> PairStates:
    both = hidden_BD[micro.chosen_P], hidden_BD[micro.rejected_P]
    return PairStates(*both, chosen_P, rejected_P, micro.places_P, micro.pairs)


def step_metrics(answers: Answers, chosen_P: Tensor, rejected_P: Tensor) -> dict[str, float]:
    """Mean scores and tokens of chosen and rejected answers, and the tokens of the whole step."""
    lengths, count = [one.trained_tokens for one in answers.trajectories], len(answers.pairs)
    return {
        "length/chosen": sum(lengths[i] for i in answers.chosen) / count,
        "length/rejected": sum(lengths[i] for i in answers.rejected) / count,
        "length/tokens": float(sum(lengths)),
        "rewards/chosen": float(chosen_P.mean()),
        "rewards/rejected": float(rejected_P.mean()),
        "rewards/margins": float((chosen_P - rejected_P).mean()),
    }


def wins(margin_P: Tensor) -> Tensor:
    """1 where the chosen answer is ahead, 0 where it is behind, 0.5 where neither is."""
    return (margin_P.sign() + 1) / 2
