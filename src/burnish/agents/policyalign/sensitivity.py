"""Policy-sensitive filtering: keep the requests on which the policy changes the model most.

    contexts = Contexts(load_model("smollm2"), read_policy("policy.md"))
    scored = await open_score("kl", contexts).score(instructions)
    kept = keep_sensitive(instructions, scored, keep=0.5, benign_share=0.2)

The paper names the step and not its score; four are offered behind one interface:

| score               | what it is                                                            |
|---------------------|-----------------------------------------------------------------------|
| `kl`                | mean divergence a token on one answer of the student: the loss itself |
| `first-token`       | the divergence of the answer's first token                            |
| `response-distance` | 1 - cosine of the answers with and without the policy                 |
| `guard-flip`        | 1 where a guard finds the answer unsafe without the policy, safe with |
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Protocol

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import Tensor

from burnish.agents.policyalign.guards import Guard
from burnish.agents.policyalign.instructions import KINDS, Instruction
from burnish.arguments import as_word, refused, same_length
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
from burnish.training.packing import PackedBatch, make_rows, pack
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
        """Whether the guard could not be asked; to be asked again."""
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
        """One answer to each text, in one batch."""
        calls = [partial(self.lm.sample, self.messages(t, told=told), sampling) for t in texts]
        return [found[0] for found in await gather(calls, limit=len(calls) or 1)]

    @torch.no_grad()
    def divergences(self, texts: Sequence[str], answers: Sequence[Completion]) -> list[Tensor]:
        """KL(without, with the policy) of each token of the answers, (T,) each."""
        return [self._divergence(*pair) for pair in zip(texts, answers, strict=True)]

    def _divergence(self, text: str, answer: Completion) -> Tensor:
        if not answer.token_ids:
            return torch.zeros(0)
        module, (prefix, keys) = self.loaded.module, self._known
        states = []
        for told in (False, True):
            prompt = self.loaded.tokenizer.render(self.messages(text, told=told))
            is_known = told and bool(prefix) and prompt[: len(prefix)] == prefix
            packed = _packed(prompt[len(prefix) :] if is_known else prompt, answer, self.loaded)
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


def _packed(prompt: Sequence[int], answer: Completion, loaded: LoadedModel) -> PackedBatch:
    ids = tuple(answer.token_ids)
    spans = (
        Span(Author.PROMPT, tuple(prompt)),
        Span(Author.MODEL, ids, (0.0,) * len(ids), trainable=True),
    )
    one = Trajectory("row", "row", "row", spans, answer.text)
    return pack(make_rows([one], False), [one], loaded.device)


class Score(Protocol):
    """Scores requests; one answer each without the policy, and one with it where it is needed."""

    async def score(self, instructions: Sequence[Instruction]) -> list[Scored]: ...


class DivergenceScore:
    """`kl` and `first-token`."""

    def __init__(self, contexts: Contexts, sampling: Sampling, kind: str) -> None:
        self.contexts, self.sampling, self.kind = contexts, sampling, kind

    async def score(self, instructions: Sequence[Instruction]) -> list[Scored]:
        texts = [one.instruction for one in instructions]
        answers = await self.contexts.answers(texts, self.sampling, told=False)
        found = []
        kls = self.contexts.divergences(texts, answers)
        for one, answer, kl_T in zip(instructions, answers, kls, strict=True):
            if not len(kl_T) or not answer.text.strip():
                found.append(Scored(one.id, None, "empty"))
                continue
            value = float(sensitivity_of(kl_T, torch.ones_like(kl_T, dtype=torch.bool), self.kind))
            found.append(Scored(one.id, value, truncated=_is_cut(answer), response=answer.text))
        return found


class _TwoAnswers(ABC):
    """Scores that compare an answer without the policy and one with it."""

    def __init__(self, contexts: Contexts, sampling: Sampling) -> None:
        self.contexts, self.sampling = contexts, sampling

    async def score(self, instructions: Sequence[Instruction]) -> list[Scored]:
        texts = [one.instruction for one in instructions]
        without = await self.contexts.answers(texts, self.sampling, told=False)
        told = await self.contexts.answers(texts, self.sampling, told=True)
        found = []
        for one, a, b in zip(instructions, without, told, strict=True):
            if not a.text.strip() or not b.text.strip():
                found.append(Scored(one.id, None, "empty"))
                continue
            value, status = await self.compare(one.instruction, a.text, b.text)
            cut = _is_cut(a)
            found.append(
                Scored(one.id, value, status, truncated=cut, response=a.text, with_policy=b.text)
            )
        return found

    @abstractmethod
    async def compare(self, prompt: str, without: str, told: str) -> tuple[float | None, str]:
        """The score and its status."""


class DistanceScore(_TwoAnswers):
    """`response-distance`: of sentence embeddings; without an encoder, of word counts."""

    def __init__(self, contexts: Contexts, sampling: Sampling, embed: Embed | None = None) -> None:
        super().__init__(contexts, sampling)
        self.embed = embed

    async def compare(self, prompt: str, without: str, told: str) -> tuple[float | None, str]:
        if self.embed is None:
            return 1 - _word_cosine(without, told), "ok"
        one, other = ([float(x) for x in row] for row in self.embed([without, told]))
        return 1 - _cosine(one, other), "ok"


class FlipScore(_TwoAnswers):
    """`guard-flip`: unsafe without the policy and safe with it."""

    def __init__(self, contexts: Contexts, sampling: Sampling, guard: Guard) -> None:
        super().__init__(contexts, sampling)
        self.guard = guard

    async def compare(self, prompt: str, without: str, told: str) -> tuple[float | None, str]:
        own = await self.guard.judge(prompt, without)
        other = await self.guard.judge(prompt, told)
        if own.safe is None or other.safe is None:
            is_outside = {own.status, other.status} & {Status.INFRA_ERROR, Status.TIMEOUT}
            return None, "guard failed" if is_outside else "no verdict"
        return float(not own.safe and other.safe), "ok"


def open_score(
    name: str,
    contexts: Contexts,
    sampling: Sampling,
    *,
    guard: Guard | None = None,
    embed: Embed | None = None,
) -> Score:
    """The score of that name.

    `guard-flip` needs a guard. `response-distance` takes the embedded sentence encoder where it is
    installed and no other is given, else word counts.
    """
    as_word("score", name, SCORES)
    if name == "response-distance":
        return DistanceScore(contexts, sampling, embed or _embedded())
    if name == "guard-flip":
        if guard is None:
            raise UserError("score 'guard-flip' needs a guard; give one, or take score = 'kl'.")
        return FlipScore(contexts, sampling, guard)
    return DivergenceScore(contexts, sampling, name)


def _embedded() -> Embed | None:
    try:
        embedded_encoder()
    except UserError:
        return None
    encoder = SentenceEncoder()
    return lambda texts: [[float(x) for x in row] for row in encoder.encode(texts)]


def _is_cut(answer: Completion) -> bool:
    return answer.finish is Finish.LENGTH


def _word_cosine(one: str, other: str) -> float:
    a, b = (Counter(text.lower().split()) for text in (one, other))
    words = sorted(a.keys() | b.keys())
    return _cosine([a[w] for w in words], [b[w] for w in words])


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
    same_length("scored", scored, len(instructions), "instructions")
    for one, score in zip(instructions, scored, strict=True):
        if score.id != one.id:
            raise refused(
                "scored", score.id, f"the score of '{one.id}': one a request, in their order"
            )
    if len({one.id for one in instructions}) < len(instructions):
        raise refused("instructions", "an id twice", "ids that differ")
    usable = [
        replace(one, sensitivity=score.score)
        for one, score in zip(instructions, scored, strict=True)
        if score.score is not None and not (drop_truncated and score.truncated)
    ]
    place = {one.id: i for i, one in enumerate(instructions)}
    chosen: list[Instruction] = []
    for clause in dict.fromkeys(one.clause_id for one in usable):
        own = [one for one in usable if one.clause_id == clause and one.kind == "violating"]
        best = sorted(own, key=lambda one: (-(one.sensitivity or 0.0), place[one.id]))
        count = math.ceil(keep * len(own))
        chosen += best[: min(count, per_clause) if per_clause else count]
    wanted = math.ceil(len(chosen) * benign_share / (1 - benign_share))
    chosen += _in_turn([one for one in usable if one.kind == "benign"])[:wanted]
    return sorted(chosen, key=lambda one: place[one.id])


def _in_turn(rows: Sequence[Instruction]) -> list[Instruction]:
    by_clause: dict[str, list[Instruction]] = {}
    for one in rows:
        by_clause.setdefault(one.clause_id, []).append(one)
    longest = max(map(len, by_clause.values()), default=0)
    return [own[i] for i in range(longest) for own in by_clause.values() if i < len(own)]


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
            raise UserError(
                f"all of {counted(len(scored), 'request')} are benign; expected some that the policy "
                'speaks of (kind = "violating"): what it changes is measured on those.'
            )
        found = Counter(one.status for one in asked).most_common()
        told = ", ".join(f"{status}: {count}" for status, count in found)
        raise UserError(
            f"none of {counted(len(asked), 'violating request')} has a score ({told}); "
            f"{_REMEDIES[found[0][0]]}."
        )
    base = _mean(instructions, neutral) if neutral is not None else None
    is_same = own <= NOTHING or (base is not None and own < CHANGES * base)
    if is_same:
        beside = "" if base is None else f"; a neutral system message: {base:.3g}"
        raise UserError(
            f"policy {policy} does not change what the model does: {kind} {own:.3g} on the requests "
            f"that it is about{beside}. The model does not follow it in its context, so there is "
            "nothing to learn from. Add worked examples to it (## Examples, then User: and Assistant: "
            "lines), or use a larger model; --force goes on all the same."
        )


def _mean(instructions: Sequence[Instruction], scored: Sequence[Scored]) -> float | None:
    pairs = zip(instructions, scored, strict=True)
    values = [s.score for one, s in pairs if one.kind == KINDS[0] and s.score is not None]
    return math.fsum(values) / len(values) if values else None
