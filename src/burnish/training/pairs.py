"""Preference pairs: read from tasks, drawn prompt by prompt, rendered and packed for a pass.

    spans = partial(scored_spans, tokenizer, fields)      # how an algorithm writes both answers
    pairs = PairSet(tasks, fields, seed=7, spans=spans, max_tokens=2048)
    batch = render_pairs(pairs.draw(step, 32), spans)
    for micro in pair_micro_batches(batch, 8192, share=True, world=World(), device=device): ...

Several pairs may have one prompt; they are drawn together, and an answer that stands in more than
one of them is computed once. Answers to one prompt share its row where that is short enough, as the
rollouts of a group do. What a step draws follows from the seed and the step alone.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from burnish.lm.base import ids_of, media_of
from burnish.lm.scalar_head import scored_ids
from burnish.lm.tokenizer import Tokenizer
from burnish.records import Author, MediaPart, Message, Span, Task, Trajectory
from burnish.rewards.models.term import Pair, PairStates
from burnish.rollouts.session import naming_task
from burnish.tasks.base import TaskSet, content_key
from burnish.tasks.mapping import RowError, read_messages
from burnish.tasks.rows import says_tie
from burnish.training.algorithm import Setup
from burnish.training.data import missing_field
from burnish.training.devices import World
from burnish.training.labelled import TEMPLATE_TOKENS, LabelledSet, UnusableRow, over_rows
from burnish.training.packing import PackedBatch, Row, make_rows, pack

Unit = TypeVar("Unit")


@dataclass(frozen=True)
class PairFields:
    chosen: str = "chosen"
    rejected: str = "rejected"
    margin: str = ""
    """Field with a number; empty: no margins."""
    tie: str = ""
    """Field that is true where neither answer is better; empty: no ties."""
    target: str = ""
    """Field with the probability that `chosen` is better; empty: 1."""
    ties: str = "drop"
    """`drop` leaves ties out, `half` gives them the target 0.5."""
    bad: str = "refuse"
    """`refuse` or `drop`."""
    takes_messages: bool = True
    """Whether an answer may be a list of chat messages."""

    @property
    def names(self) -> list[str]:
        named = (self.chosen, self.rejected, self.margin, self.tie, self.target)
        return [name for name in named if name]


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
    """Whole pairs in one packed batch."""

    packed: PackedBatch
    places_P: Tensor
    """Place of each pair in its step."""
    chosen_P: Tensor
    """Row of each pair's chosen answer in the (B, T) tensors of the pass."""
    rejected_P: Tensor
    pairs: Sequence[Pair]
    total: int
    """Pairs of the whole update."""


def pair_faults(tasks: TaskSet, fields: PairFields) -> Iterator[str]:
    """Fields that the settings name and the tasks lack."""
    for name in fields.names:
        yield from missing_field(tasks, name, "train.chosen, train.rejected or a label's field")


class PairSet(LabelledSet[Pair]):
    """The usable pairs of a task set."""

    def __init__(
        self,
        tasks: TaskSet,
        fields: PairFields,
        *,
        seed: int = 0,
        spans: BothSpans | None = None,
        max_tokens: int = 0,
        together: bool = True,
    ) -> None:
        """Pairs with more than `max_tokens` cannot be used; without `spans` none is measured."""
        self.fields = fields
        super().__init__(
            tasks,
            lambda task: read_pair(task, fields),
            what="pairs",
            bad=fields.bad,
            setting="train.bad_pairs",
            seed=seed,
            keeps=lambda pair: pair.target != 0.5 or fields.ties != "drop",
            fits=lambda pair: spans is None or _fits(pair, fields, spans, max_tokens),
            max_tokens=max_tokens,
            together=together,
        )


# --- one pair


def read_pair(task: Task, fields: PairFields) -> Pair:
    """The pair in a task's fields; raises `UnusableRow`."""
    names = (fields.chosen, fields.rejected)
    chosen, rejected = (_answer(task.fields.get(n), n, fields.takes_messages) for n in names)
    is_tie = bool(fields.tie) and _truth(task.fields.get(fields.tie), fields.tie)
    margin = _number(task.fields.get(fields.margin), fields.margin, 0.0) if fields.margin else 0.0
    target = _number(task.fields.get(fields.target), fields.target, 1.0) if fields.target else 1.0
    if not 0 <= target <= 1:
        raise UnusableRow(f"a '{fields.target}' outside of 0 to 1")
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


def _answer(value: Any, name: str, takes_messages: bool) -> str:
    """The text of an answer: itself, or the assistant's words of a list of messages."""
    if isinstance(value, str):
        text = value
    elif not takes_messages:
        raise UnusableRow(f"a '{name}' that is not the assistant's words as text")
    else:
        turns = _messages(value, name)
        text = "\n".join(turn.text for turn in turns if turn.role == "assistant")
    if not text.strip():
        raise UnusableRow(f"an empty '{name}'")
    return text


def _messages(value: Any, name: str) -> tuple[Message, ...]:
    try:
        return read_messages(value, name)
    except RowError:
        raise UnusableRow(f"a '{name}' that is neither text nor chat messages") from None


def _number(value: Any, name: str, default: float) -> float:
    if value is None:
        return default
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # Compared and not converted: a whole number may be larger than any float.
    if not is_number or not -LARGEST_LABEL <= value <= LARGEST_LABEL:
        raise UnusableRow(f"a '{name}' that is no finite number of at most {LARGEST_LABEL:g}")
    return float(value)


def _truth(value: Any, name: str) -> bool:
    """Whether a label says "a tie"; an empty one says no, a word that is not known is refused."""
    found = says_tie(value)
    if found is None:
        raise UnusableRow(f"a '{name}' that is neither true nor false")
    return found


def conversation(task: Task, value: Any) -> tuple[Message, ...]:
    """The whole conversation that an answer ends: text, turns, or a list with the prompt in it."""
    if isinstance(value, str):
        return (*task.messages, Message("assistant", value))
    turns = read_messages(value, "answer")
    return turns if turns[0].role in ("system", "user") else (*task.messages, *turns)


def _fits(pair: Pair, fields: PairFields, spans: BothSpans, max_tokens: int) -> bool:
    """Whether both conversations are within the limit; only long texts are measured.

    A label for answers that the tokenizer or the template makes equal teaches nothing and would
    count as half right: it raises `UnusableRow`.
    """
    if pair.target != 0.5 and are_alike(pair.chosen, pair.rejected):
        first, second = ([s.token_ids for s in side] for side in spans(pair))
        if sum(first, ()) == sum(second, ()):
            raise UnusableRow("two answers that are the same tokens")
    values = (pair.task.fields[name] for name in (fields.chosen, fields.rejected))
    for turns in (conversation(pair.task, value) for value in values):
        # A token holds at least one byte of text, or a part of an image or a sound.
        most = sum(len(turn.text.encode(errors="replace")) + TEMPLATE_TOKENS for turn in turns)
        if most > max_tokens or any(turn.media for turn in turns):
            return all(sum(len(s.token_ids) for s in side) <= max_tokens for side in spans(pair))
    return True


# --- tokens and passes


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
    tokenizer: Tokenizer, fields: PairFields, pair: Pair
) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    """Both answers as a reward model reads them; the tokens behind the prompt are trained."""
    prompt = tokenizer.render_spans(pair.task.messages)
    chosen, rejected = (
        _spans(prompt, scored_ids(tokenizer, conversation(pair.task, pair.task.fields[name])))
        for name in (fields.chosen, fields.rejected)
    )
    return chosen, rejected


def _spans(prompt: Sequence[Span], ids: tuple[int, ...]) -> tuple[Span, ...]:
    """The prompt's spans and the rest as the answer; one span where a template changes the prompt."""
    size = sum(len(span.token_ids) for span in prompt)
    before = tuple(token for span in prompt for token in span.token_ids)
    media: tuple[MediaPart, ...] = ()
    if size >= len(ids) or ids[:size] != before:
        prompt, size, media = (Span(Author.PROMPT, ids[:1]),), 1, media_of(ids)
    rest = ids[size:]
    return (*prompt, Span(Author.MODEL, rest, (0.0,) * len(rest), trainable=True, media=media))


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
        yield _pack(batch, group, device)


def _cut(
    batch: Answers, unit: list[int], tokens: int, share: bool
) -> list[tuple[list[int], list[Row]]]:
    """The pairs of one prompt with their rows; pair by pair where they do not fit into one pass."""
    rows = _rows(batch, unit, share)
    if len(unit) == 1 or len(rows) * max(row.tokens for row in rows) <= tokens:
        return [(unit, rows)]
    return [([place], _rows(batch, [place], share)) for place in unit]


def _rows(batch: Answers, unit: Sequence[int], share: bool) -> list[Row]:
    sides = [row for place in unit for row in (batch.chosen[place], batch.rejected[place])]
    wanted = list(dict.fromkeys(sides))
    rows = make_rows([batch.trajectories[i] for i in wanted], share)
    return [replace(row, members=tuple(wanted[m] for m in row.members)) for row in rows]


def _pack(
    batch: Answers, group: Sequence[tuple[list[int], list[Row]]], device: torch.device
) -> PairMicro:
    packed = pack([row for _, rows in group for row in rows], batch.trajectories, device)
    # An answer stands in several rows where its prompt's pairs were cut; any of them will do.
    row_of = {member: row for row, member in enumerate(packed.members)}
    places = [place for unit, _ in group for place in unit]
    numbers_3P = torch.tensor(
        [
            places,
            [row_of[batch.chosen[p]] for p in places],
            [row_of[batch.rejected[p]] for p in places],
        ]
    )
    places_P, chosen_P, rejected_P = numbers_3P.to(device)
    pairs = [batch.pairs[place] for place in places]
    return PairMicro(packed, places_P, chosen_P, rejected_P, pairs, len(batch.pairs))


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


# --- passes of a run over all pairs


def cut_pairs(setup: Setup, answers: Answers, tokens: int) -> Iterator[PairMicro]:
    """This process's share of the pairs in passes of about `tokens` tokens."""
    share = setup.batches.share_prompts
    return pair_micro_batches(
        answers,
        tokens,
        share=share and getattr(setup.trainable.module, "packs", True),
        world=setup.world,
        device=setup.trainable.device,
    )


def last_states(hidden_RSD: Tensor, packed: PackedBatch) -> Tensor:
    """The hidden state at each answer's last token, (B, D) in at least float32."""
    ends_B = packed.trained_BT.sum(1).cumsum(0) - 1
    places_B = packed.place_N.index_select(0, ends_B)
    hidden_BD = hidden_RSD.flatten(0, 1).index_select(0, places_B)
    return hidden_BD if hidden_BD.dtype == torch.float64 else hidden_BD.float()


def pair_states(
    hidden_BD: Tensor, chosen_P: Tensor, rejected_P: Tensor, micro: PairMicro
) -> PairStates:
    """What a term sees of a pass; the scores are those of each pair."""
    both = hidden_BD[micro.chosen_P], hidden_BD[micro.rejected_P]
    return PairStates(*both, chosen_P, rejected_P, micro.places_P, micro.pairs)


def over_pairs(
    setup: Setup, answers: Answers, of: Callable[[PairMicro], Sequence[Tensor]]
) -> list[Tensor]:
    """Values of all pairs, (N, ...) each, over all processes and without a graph."""
    return over_rows(
        setup,
        lambda tokens: cut_pairs(setup, answers, tokens),
        len(answers.pairs),
        lambda micro: (micro.places_P, of(micro)),
    )


def length_metrics(answers: Answers) -> dict[str, float]:
    """Mean tokens of chosen and rejected answers, and those of the whole step."""
    lengths, count = [one.trained_tokens for one in answers.trajectories], len(answers.pairs)
    return {
        "length/chosen": sum(lengths[i] for i in answers.chosen) / count,
        "length/rejected": sum(lengths[i] for i in answers.rejected) / count,
        "length/tokens": float(sum(lengths)),
    }


def wins(margin_P: Tensor) -> Tensor:
    """1 where the chosen answer is ahead, 0 where it is behind, 0.5 where neither is."""
    return (margin_P.sign() + 1) / 2
