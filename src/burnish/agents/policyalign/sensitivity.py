"""Policy-sensitive filtering: keep the requests on which the policy changes the model most.

The paper names the step and not its score; four are offered: `kl`, the mean divergence a token on one
answer of the student; `first-token`, that of the answer's first token; `response-distance`, 1 - cosine
of the answers with and without the policy; `guard-flip`, 1 where a guard finds the answer unsafe
without the policy and safe with it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property, partial
from itertools import zip_longest

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import Tensor

from burnish.agents.policyalign.guards import Guard
from burnish.agents.policyalign.instructions import KINDS, Instruction
from burnish.arguments import as_word, refused
from burnish.boundary import Count, Fraction, PositiveShare, public
from burnish.concurrency import gather
from burnish.errors import UserError
from burnish.lm.base import Completion, Sampling
from burnish.lm.decoder import Decoder
from burnish.lm.embedded import SentenceEncoder, embedded_encoder
from burnish.lm.folder import LoadedModel, check_causal
from burnish.lm.local import LocalLM
from burnish.policy.distillation import sensitivity_of, token_divergence
from burnish.records import Author, Finish, Message, Span, Status, Trajectory
from burnish.tensors import as_logp
from burnish.texts import counted
from burnish.training.packing import make_rows, pack
from burnish.training.policy_text import (
    PolicyText,
    check_only_policy,
    default_system,
    parse_policy,
    with_policy,
)
from burnish.training.teacher import Keys, behind_prefix, prefix_keys

SCORES = ("kl", "first-token", "response-distance", "guard-flip")
NEUTRAL = parse_policy("Read the user's message and answer it as well as you can.", "neutral")
"""A context that asks for nothing: any system message moves a model a little."""
CHANGES = 1.5
"""How many times the neutral context's divergence a policy must have to count as followed."""
NOTHING = 1e-3
"""Nats a token: below it nothing has changed."""

Embed = Callable[[Sequence[str]], Sequence[Sequence[float]]]


class Scored(Struct, frozen=True, omit_defaults=True):
    """How much the policy changes what the model does with one request."""

    id: str
    score: float | None
    status: str = "ok"
    """`ok`, `empty` (nothing was written), `no verdict` or `guard failed`; only `ok` has a score."""
    truncated: bool = False
    """The answer was cut at the token limit."""
    response: str = ""
    with_policy: str = ""

    @property
    def failed_outside(self) -> bool:
        return self.status == "guard failed"


class Contexts:
    """One model with and without a policy in its context."""

    def __init__(self, loaded: LoadedModel, policy: PolicyText) -> None:
        check_causal(loaded, "model")
        self.loaded, self.policy = loaded, policy
        self.lm = LocalLM(loaded)
        self.default = default_system(loaded.tokenizer)
        asked = self.messages("Where?", told=False)
        told = self.messages("Where?", told=True)
        check_only_policy(loaded.tokenizer, asked, told, policy)

    def messages(self, text: str, *, told: bool) -> tuple[Message, ...]:
        """A request as the student reads it; `told`: as the teacher does."""
        asked = (Message("user", text),)
        return with_policy(asked, self.policy, self.default) if told else asked

    async def answers(
        self, texts: Sequence[str], sampling: Sampling, *, told: bool
    ) -> list[Completion]:
        calls = [partial(self.lm.sample, self.messages(t, told=told), sampling) for t in texts]
        return [found[0] for found in await gather(calls, limit=len(calls) or 1)]

    @torch.no_grad()
    def divergence(self, text: str, answer: Completion) -> Tensor:
        """KL(without, with the policy) of each token of an answer, (T,)."""
        ids = tuple(answer.token_ids)
        if not ids:
            return torch.zeros(0)
        module, (prefix, keys) = self.loaded.module, self._known
        states = []
        for told in (False, True):
            prompt = self.loaded.tokenizer.render(self.messages(text, told=told))
            is_known = told and bool(prefix) and prompt[: len(prefix)] == prefix
            spans = (
                Span(Author.PROMPT, tuple(prompt[len(prefix) :] if is_known else prompt)),
                Span(Author.MODEL, ids, (0.0,) * len(ids), trainable=True),
            )
            one = Trajectory("row", "row", "row", spans, answer.text)
            packed = pack(make_rows([one], False), [one], self.loaded.device)
            if is_known:
                assert isinstance(module, Decoder)
                hidden_RSD = behind_prefix(module, packed, keys)
            else:
                hidden_RSD = module(packed.inputs)
            states.append(hidden_RSD.flatten(0, 1).index_select(0, packed.source_N))
        own, other = (as_logp(module.logits(hidden)) for hidden in states)
        return token_divergence(own, other, "reverse", 1.0, 0)

    @cached_property
    def _known(self) -> tuple[list[int], Keys]:
        module, render = self.loaded.module, self.loaded.tokenizer.render
        one, other = (render(self.messages(text, told=True)) for text in ("a", "Where?"))
        pairs = enumerate(zip(one, other, strict=False))
        size = next((i for i, (a, b) in pairs if a != b), len(one))
        if not isinstance(module, Decoder) or module.architecture.sliding_window is not None:
            return [], ()
        return one[:size], prefix_keys(module, one[:size])


Compare = Callable[[str, Completion, Completion], Awaitable[tuple[float | None, str]]]
"""A request, the answers without and with the policy: the score and its status."""


class Score:
    """Scores requests; one answer each without the policy, and one with it where two are compared."""

    def __init__(
        self, contexts: Contexts, sampling: Sampling, compare: Compare, *, is_paired: bool = True
    ) -> None:
        self.contexts, self.sampling, self.compare = contexts, sampling, compare
        self.is_paired = is_paired

    async def score(self, instructions: Sequence[Instruction]) -> list[Scored]:
        texts = [one.instruction for one in instructions]
        without = await self.contexts.answers(texts, self.sampling, told=False)
        told = without
        if self.is_paired:
            told = await self.contexts.answers(texts, self.sampling, told=True)
        found = []
        for one, a, b in zip(instructions, without, told, strict=True):
            value, status = None, "empty"
            if a.text.strip() and b.text.strip():
                value, status = await self.compare(one.instruction, a, b)
            if status == "empty":
                found.append(Scored(one.id, None, status))
                continue
            is_cut, other = a.finish is Finish.LENGTH, b.text if self.is_paired else ""
            found.append(Scored(one.id, value, status, is_cut, a.text, other))
        return found


def open_score(
    name: str, contexts: Contexts, sampling: Sampling, *, guard: Guard | None = None
) -> Score:
    """The score of that name.

    `guard-flip` needs a guard. `response-distance` takes the embedded sentence encoder where it is
    installed, else word counts.
    """
    as_word("score", name, SCORES)
    if name == "response-distance":
        embed = sentence_embed()

        async def distance(prompt: str, a: Completion, b: Completion) -> tuple[float | None, str]:
            if embed is not None:
                return 1 - _cosine(*embed([a.text, b.text])), "ok"
            one, other = (Counter(answer.text.lower().split()) for answer in (a, b))
            words = sorted(one.keys() | other.keys())
            return 1 - _cosine([one[w] for w in words], [other[w] for w in words]), "ok"

        return Score(contexts, sampling, distance)
    if name == "guard-flip":
        if guard is None:
            raise UserError("score 'guard-flip' needs a guard; give one, or take score = 'kl'.")

        async def flip(prompt: str, a: Completion, b: Completion) -> tuple[float | None, str]:
            own, other = [await guard.judge(prompt, answer.text) for answer in (a, b)]
            if own.safe is None or other.safe is None:
                is_outside = {own.status, other.status} & {Status.INFRA_ERROR, Status.TIMEOUT}
                return None, "guard failed" if is_outside else "no verdict"
            return float(not own.safe and other.safe), "ok"

        return Score(contexts, sampling, flip)

    async def divergence(prompt: str, a: Completion, b: Completion) -> tuple[float | None, str]:
        kl_T = contexts.divergence(prompt, a)
        if not len(kl_T):
            return None, "empty"
        return float(sensitivity_of(kl_T, torch.ones_like(kl_T, dtype=torch.bool), name)), "ok"

    return Score(contexts, sampling, divergence, is_paired=False)


def sentence_embed() -> Embed | None:
    try:
        embedded_encoder()
    except UserError:
        return None
    encoder = SentenceEncoder()
    return lambda texts: [[float(x) for x in row] for row in encoder.encode(texts)]


def _cosine(one: Sequence[float], other: Sequence[float]) -> float:
    size = math.hypot(*one) * math.hypot(*other)
    return math.fsum(a * b for a, b in zip(one, other, strict=True)) / size if size else 0.0


@public
def keep_sensitive(
    instructions: Sequence[Instruction],
    scored: Sequence[Scored],
    *,
    keep: PositiveShare = 0.5,
    benign_share: Fraction = 0.2,
    per_clause: Count = 0,
    drop_truncated: bool = True,
) -> list[Instruction]:
    """The requests to train on: of each clause the `keep` fraction with the highest scores.

    Ties go by the original order. Requests without a score, and with `drop_truncated` those whose
    answer was cut, are left out. `per_clause` caps a clause, 0 does not. Benign near misses are kept
    whatever their score, so many that they are `benign_share` of what is kept, as far as they last.
    """
    ids = [one.id for one in instructions]
    if [score.id for score in scored] != ids or len(set(ids)) < len(ids):
        expected = f"a score of each of the {len(ids)} instructions, in order, by ids that differ"
        raise refused("scored", [score.id for score in scored], expected)
    usable = [
        replace(one, sensitivity=score.score)
        for one, score in zip(instructions, scored, strict=True)
        if score.score is not None and not (drop_truncated and score.truncated)
    ]
    chosen: set[str] = set()
    benign: list[list[str]] = []
    for clause in dict.fromkeys(one.clause_id for one in usable):
        own = [one for one in usable if one.clause_id == clause]
        benign.append([one.id for one in own if one.kind == "benign"])
        violating = [one for one in own if one.kind == "violating"]
        best = sorted(violating, key=lambda one: -(one.sensitivity or 0.0))
        best = best[: math.ceil(keep * len(best))]
        chosen |= {one.id for one in best[: per_clause or None]}
    wanted = math.ceil(len(chosen) * benign_share / (1 - benign_share))
    in_turn = [name for turn in zip_longest(*benign) for name in turn if name is not None]
    chosen |= set(in_turn[:wanted])
    return [one for one in usable if one.id in chosen]


_REMEDIES = {
    "empty": "look at what the model answers with `burnish chat`",
    "no verdict": "take a guard that keeps to its form",
    "guard failed": "see whether the guard's server answers, then repeat the command",
}
"""What to do where a request has no score, by its status."""


def check_changes(
    instructions: Sequence[Instruction],
    scored: Sequence[Scored],
    neutral: Sequence[Scored] | None,
    policy: str,
    kind: str = "kl",
) -> None:
    """Stop where the policy does not change the model: it cannot teach what it does not follow.

    `neutral` are the scores of a context that asks for nothing, where the score is a divergence.
    """
    own = _mean(instructions, scored)
    if own is None:
        asked = [s for one, s in zip(instructions, scored, strict=True) if one.kind == "violating"]
        if not asked:
            count = counted(len(scored), "request")
            raise UserError(f'all of {count} are benign; expected some of kind = "violating".')
        found = Counter(one.status for one in asked).most_common()
        told = ", ".join(f"{status}: {count}" for status, count in found)
        count = counted(len(asked), "violating request")
        raise UserError(f"none of {count} has a score ({told}); {_REMEDIES[found[0][0]]}.")
    base = _mean(instructions, neutral) if neutral is not None else None
    is_same = own <= NOTHING or (base is not None and own < CHANGES * base)
    if is_same:
        beside = "" if base is None else f"; a neutral system message: {base:.3g}"
        same = (
            f"policy {policy} does not change what the model does: {kind} {own:.3g} on the requests"
        )
        todo = "Add ## Examples to it, or use a larger model; --force goes on all the same."
        raise UserError(f"{same} that it is about{beside}. {todo}")


def _mean(instructions: Sequence[Instruction], scored: Sequence[Scored]) -> float | None:
    pairs = zip(instructions, scored, strict=True)
    values = [s.score for one, s in pairs if one.kind == KINDS[0] and s.score is not None]
    return math.fsum(values) / len(values) if values else None
