"""Steps of a solution, gated by whether the premises they declare are really there (EVPV).

A verifier reads question and steps and says +1 or -1 of each. The facts of the task's evidence are
extracted once, each declared premise is matched with them, and a positive step keeps its score only as
far as its premise is supported (arXiv 2603.16253). Where we differ: a reliability a claim and not one a
response, unknown is 0.5 and no contradiction, undeclared premises are found, and what could not be
read (a verdict, an audit, evidence) is never a number: a step without a verdict leaves the response
without a value, a premise that nobody could check leaves its gate open, flagged and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import anyio.to_thread
import msgspec

from burnish.boundary import Count, Fraction, Share
from burnish.errors import UserError
from burnish.records import Evidence, MediaPart, Response, Reward, Status, Task, Verdict
from burnish.rewards.checks.sections import Split, check_split
from burnish.rewards.judge_reward import JudgeRewardConfig, Renamed
from burnish.rewards.judges.build import Options, read_options
from burnish.rewards.judges.evpv.evidence import (
    PROMPTS,
    Extraction,
    extract_all,
    pictures_in,
    pieces_of,
)
from burnish.rewards.judges.evpv.matching import (
    EmbeddingMatcher,
    FactIndex,
    Matched,
    Outcome,
    response_reliability,
    support_of,
)
from burnish.rewards.judges.evpv.metrics import FACTS_READ, STEP
from burnish.rewards.judges.evpv.scores import (
    Aggregate,
    Solution,
    SolutionStep,
    aggregate_steps,
    build_checklist,
    gate,
    parse_step_verdict,
    parse_step_verdict_strict,
    read_solution,
    reliability_from_audit,
    undeclared_premises,
)
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.prompting import (
    JudgeReply,
    Question,
    Unreadable,
    fenced,
    request_of,
    wording,
)
from burnish.rewards.judges.reading import (
    Maybe,
    Table,
    after_thoughts,
    loose_text,
    one_of,
    read_list,
    read_reply,
    rows,
    whole,
)
from burnish.rewards.scorer import Scope, Scorer, checked, fingerprint, gather
from burnish.seeds import digest

CONCURRENT = 32
KEPT = 2000
"""Characters of a step that are stored as evidence."""
MOST_STEPS, MOST_CLAIMS = 64, 320
"""A longer solution, and one with more premises, has no value."""
UNREADABLE = "the evidence could not be read"
EMPTY = "the evidence holds no fact"


class EvpvOptions(Options, frozen=True):
    evidence: str = "evidence"
    """Task field with the evidence: a text, a table, a picture, recorded facts, or a list of such."""
    pictures: Literal["ignore", "ocr", "vision"] = "ignore"
    """The pictures of the prompt are evidence: what is written in them (ocr), or what the model, which
    must see, lists of them (vision). The field `evidence` may then be left out."""
    question: str = "question"
    """Task field with the question where the prompt holds the evidence too; the prompt otherwise. What
    stands in it is no premise."""

    extractor: Literal["auto", "text", "table", "facts", "llm", "ocr", "vision"] = "auto"
    """auto: by the type of each piece. llm: the model lists the facts, also of a picture. Or another
    one: text, table, facts, ocr, vision."""
    matcher: Literal["canonical", "embedding", "judge", "audit"] = "canonical"
    """canonical: subject, relation and value with units. embedding, judge: sentence vectors or the
    model settle what that leaves unknown. audit: the model lists contradictions, as in the paper."""
    unknown: Share = 0.5
    """Support of a premise that the evidence says nothing about."""
    relative: Fraction = 1e-3
    """Tolerance of numbers that are not whole."""
    scope: Literal["step", "mean", "min"] = "step"
    """step: a step is gated by its own premises. mean, min: all by one number, as in the paper."""
    undeclared: Literal["unknown", "ignore"] = "unknown"
    """A step that uses the evidence without declaring it is gated as unknown, or not at all."""
    min_premises: Count = 0
    """Premises that a solution must declare; with fewer, its steps without one are gated by the share
    that is there, so that a bare answer earns nothing for its steps."""

    verifier: Literal["judge", "none"] = "judge"
    """judge: the model says 1 or -1 of each step. none: every step is +1, so the gate alone decides."""
    verdicts: Literal["strict", "reference"] = "strict"
    """strict: a reply of 1 or -1 alone. reference: the lenient rule, which reads any text."""
    history: Count = 12
    """Earlier steps that the verifier sees."""
    aggregate: Aggregate = "weighted"
    """How step scores become one value: weighted, rate, streak, geometric, first_error."""
    soft: bool = True
    """Read fractional scores as chances; false is the paper's form, which counts 0.9 as wrong."""
    split: Split = "blank_lines"
    """Where steps of a plain text end; a solution in JSON has its own."""
    headings: tuple[str, ...] = ()
    """How steps begin, with `split = "headings"`."""
    name: str = "evpv"

    def check(self) -> None:
        check_split(self.split, self.headings)


class EvpvConfig(JudgeRewardConfig, frozen=True, kw_only=True, tag="evpv"):
    """Steps of a solution, gated by premises checked against the task's evidence (EVPV); 0 to 1."""

    method: Literal["evpv"] = msgspec.field(default="evpv", name="with")
    model: str = ""
    """As of kind `judge`; may be left out with options.verifier = "none", or with `process`."""
    process: str = ""
    """A run that trained a process reward model: it scores the steps instead of `model`."""
    both_orders: bool = False
    """Nothing is compared here."""

    @property
    def chosen(self) -> EvpvOptions:
        return read_options("evpv", self.options, EvpvOptions)

    def build(self, base: str | Path) -> Scorer:
        """The scorer; without a model only what needs none."""
        options, steps = self.chosen, None
        if self.process:
            from burnish.rewards.models import trained_model

            path = str(Path(base) / Path(self.process).expanduser())
            config = trained_model.ProcessRewardModelConfig(
                path=path, split=options.split, headings=options.headings
            )
            steps = trained_model.ProcessRewardModelReward(config)
        judge = self.judge_model(base) if self.model else None
        scorer = EvpvJudge(judge, options, steps=steps)
        if judge is not None:
            judge.shows_media = scorer.shows_media
        return Renamed(scorer, self.name) if self.name not in ("", scorer.name) else scorer


class Premises(NamedTuple):
    matched: dict[str, Matched]
    """By claim."""
    undeclared: dict[int, str]
    by_step: dict[int, float | None]
    """Reliability of the steps that rest on a premise; None: nobody could check it."""
    replies: tuple[Evidence, ...] = ()
    problem: str = ""
    warnings: tuple[str, ...] = ()


class EvpvJudge:
    """A step scorer: verifier, extractor, matcher, gate and aggregator."""

    scope = Scope.STEP
    usual_reply = "1"

    def __init__(
        self,
        judge: JudgeModel | None = None,
        options: EvpvOptions | None = None,
        *,
        steps: Scorer | None = None,
        encoder: Any = None,
        **more: Any,
    ) -> None:
        """`steps` scores the steps instead of the model: a part a step, probabilities of being right.

        `encoder` makes the vectors of the matcher "embedding"; `more` are options by name.
        """
        chosen = read_options("evpv", more, EvpvOptions) if options is None else options
        self.options, self.name, self.steps = chosen, chosen.name, steps
        asks = {
            "verifier = 'judge'": chosen.verifier == "judge" and steps is None,
            f"matcher = '{chosen.matcher}'": chosen.matcher in ("judge", "audit"),
            f"extractor = '{chosen.extractor}'": chosen.extractor in ("llm", "vision"),
            "pictures = 'vision'": chosen.pictures == "vision",
        }
        if judge is None and (asked := [what for what, is_so in asks.items() if is_so]):
            raise UserError(
                f"judge '{self.name}': {asked[0]} asks a model and there is none; give `model`, or choose "
                "verifier = 'none', matcher = 'canonical', extractor = 'auto' and pictures = 'ocr'."
            )
        self.judge = cast(JudgeModel, judge)
        """None where nothing asks it."""
        is_verifier = steps is None and chosen.verifier != "none"
        self.shows_media = is_verifier or chosen.pictures == "vision"
        self.needs = frozenset({chosen.evidence} if chosen.pictures == "ignore" else ())
        self._encoder = encoder
        self.counts: Counter[str] = Counter()
        """What has been seen: responses, claims by outcome, undeclared, unchecked."""

    @property
    def inputs(self) -> frozenset[str]:
        """Columns that belong to the question and are no labels: `burnish judge` shows them."""
        return frozenset({self.options.evidence, self.options.question})

    @property
    def fingerprint(self) -> str:
        model = self.judge.fingerprint if self.judge is not None else ""
        steps = fingerprint(self.steps) if self.steps is not None else ""
        return digest("evpv", model, steps, *wordings(), msgspec.json.encode(self.options))

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        """One reward for each response; the evidence of a task is read once."""
        facts = await self._extract(task)
        index = FactIndex(facts.facts, relative=self.options.relative)
        # What a shared extraction cost is told once.
        free = [msgspec.structs.replace(one, cost_usd=0.0) for one in facts.evidence]
        later = replace(facts, evidence=tuple(free))
        calls = [
            partial(self._one, task, response, later if place else facts, index)
            for place, response in enumerate(responses)
        ]
        return await gather(calls, limit=CONCURRENT)

    def _question(self, task: Task) -> str:
        given = task.fields.get(self.options.question)
        return given if isinstance(given, str) and given.strip() else request_of(task)

    async def _extract(self, task: Task) -> Extraction:
        field = self.options.evidence
        given = task.fields.get(field)
        seen = [] if self.options.pictures == "ignore" else pictures_in(task.messages)
        if given is None and not seen:
            raise UserError(
                f"task {task.id}: there is no field '{field}'; expected the evidence that premises "
                "are checked against: a text, a table, a picture, recorded facts, or a list of them; "
                "or a prompt with a picture and options.pictures = 'ocr'."
            )
        pieces = [] if given is None else pieces_of(given, f"task {task.id}, field '{field}'")
        pieces += [{**one, "type": self.options.pictures} for one in seen]
        return await extract_all(
            pieces, extractor=self.options.extractor, judge=self.judge, about=(task.id,)
        )

    async def _one(
        self, task: Task, response: Response, facts: Extraction, index: FactIndex
    ) -> Reward:
        options = self.options
        solution = read_solution(response.text, options.split, options.headings)
        count, claims = len(solution.steps), sum(len(one.premises) for one in solution.steps)
        if not 0 < count <= MOST_STEPS or claims > MOST_CLAIMS:
            why = f"the answer has {count} steps and {claims} premises; expected 1 to {MOST_STEPS} steps"
            return Reward.failed(
                self.name, Status.ABSTAIN, f"{why}, at most {MOST_CLAIMS} premises"
            )
        about = (task.id, response.id)
        premises = await self._premises(self._question(task), solution, facts, index, about)
        scored = await self._raw(task, response, solution, about)
        self.counts["responses"] += 1
        self.counts["undeclared"] += len(premises.undeclared)
        self.counts["gate open"] += bool(premises.problem)
        self.counts.update(one.word for one in premises.matched.values())
        return self._reward(solution, premises, scored, facts)

    async def _premises(
        self,
        question: str,
        solution: Solution,
        facts: Extraction,
        index: FactIndex,
        about: tuple[str, ...],
    ) -> Premises:
        options, steps = self.options, solution.steps
        claims = build_checklist([list(step.premises) for step in steps]).claims
        hidden = (
            undeclared_premises(steps, index, question) if options.undeclared == "unknown" else {}
        )
        if facts.status is not Status.OK:
            unread = {claim: Matched(claim, None, note=UNREADABLE) for claim in claims}
            by_step = self._gates(solution, unread, {})
            return Premises(unread, {}, by_step, problem=f"{UNREADABLE}: {facts.reason}")
        matched = {claim: index.match(claim) for claim in claims}
        audit = Audit()
        if options.matcher == "embedding":
            match = partial(self._vectors.match, index, list(matched.values()))
            found = await anyio.to_thread.run_sync(match)
            matched = dict(zip(matched, found, strict=True))
        elif options.matcher == "judge":
            audit = await ask_matches(self.judge, index, matched, about)
        elif options.matcher == "audit" and claims:
            audit = await ask_audit(self.judge, index, matched, about)
        by_step = self._gates(solution, matched, hidden, audit.reliability)
        return Premises(matched, hidden, by_step, *audit[1:])

    @cached_property
    def _vectors(self) -> EmbeddingMatcher:
        if self._encoder is None:
            from burnish.lm.embedded import SentenceEncoder

            self._encoder = SentenceEncoder()
        return EmbeddingMatcher(self._encoder)

    def _gates(
        self,
        solution: Solution,
        matched: Mapping[str, Matched],
        hidden: Mapping[int, str],
        level: float | None = None,
    ) -> dict[int, float | None]:
        """The reliability of each step that rests on a premise, declared or not."""
        options = self.options
        supports = {claim: support_of(one, options.unknown) for claim, one in matched.items()}
        if level is not None:
            for claim, one in matched.items():
                is_ours = one.by != "audit" and one.outcome is Outcome.CONTRADICTED
                if one.outcome is not None and not is_ours:
                    supports[claim] = level

        whole = None
        if options.scope != "step":
            every = [*supports.values(), *[options.unknown] * len(hidden)]
            whole = response_reliability(every, options.scope)
        found: dict[int, float | None] = {}
        for place, step in enumerate(solution.steps):
            own = [supports[claim] for claim in step.premises]
            own += [options.unknown] if place in hidden else []
            if own:
                # A premise that nobody could check raises no step above what the others are worth.
                found[place] = (
                    response_reliability(own, "min") if options.scope == "step" else whole
                )
            elif len(matched) < options.min_premises:
                found[place] = len(matched) / options.min_premises
        return found

    async def _raw(
        self, task: Task, response: Response, solution: Solution, about: tuple[str, ...]
    ) -> list[JudgeReply[float]]:
        if self.steps is not None:
            (found,) = await checked(self.steps, task, [response])
            if len(found.parts) != len(solution.steps):
                told = found.reason or f"{len(found.parts)} scores for {len(solution.steps)} steps"
                status = found.status if found.value is None else Status.PARSE_ERROR
                return [JudgeReply(None, status, told)] * len(solution.steps)
            scores = (2 * p.value - 1 if p.value is not None else None for p in found.parts)
            return [
                JudgeReply(None if one is None else max(-1.0, min(1.0, one)), part.status)
                for one, part in zip(scores, found.parts, strict=True)
            ]
        if self.options.verifier == "none":
            return [JudgeReply(1.0)] * len(solution.steps)
        texts, request = [step.text for step in solution.steps], self._question(task)
        ask = partial(
            ask_verdict,
            self.judge,
            request,
            about=about,
            history=self.options.history,
            is_strict=self.options.verdicts == "strict",
            media=task.media,
        )
        calls = [partial(ask, texts[:place], text) for place, text in enumerate(texts)]
        return await gather(calls, limit=CONCURRENT)

    def _reward(
        self,
        solution: Solution,
        premises: Premises,
        scored: Sequence[JudgeReply[float]],
        facts: Extraction,
    ) -> Reward:
        options = self.options
        places = list(premises.by_step)
        scores = gate([one.verdict for one in scored], places, list(premises.by_step.values()))
        judged = {
            claim: Verdict(one.claim, support_of(one, options.unknown), reason=_why(one))
            for claim, one in premises.matched.items()
        }
        parts = tuple(
            self._part(place, solution.steps[place], premises, judged, one, score)
            for place, (one, score) in enumerate(zip(scored, scores, strict=True))
        )
        outcomes = Counter(one.word for one in premises.matched.values())
        told = [f"{options.aggregate} of {len(parts)} steps"]
        told += [f"{n} premises {word}" for word, n in outcomes.items()]
        told += [f"{len(premises.undeclared)} undeclared"] * bool(premises.undeclared)
        if (count := len(premises.matched)) < options.min_premises:
            told.append(f"{count} of at least {options.min_premises} premises declared")
        told += [f"gate open: {premises.problem}"] * bool(premises.problem)
        told += premises.warnings
        told += [EMPTY] * (not facts.facts and not premises.problem)
        summary = f"{len(facts.facts)}{FACTS_READ}"
        summary += f", {facts.unreadable} more could not be read" if facts.unreadable else ""
        seen = Evidence(self.name, summary, error=premises.problem or None)
        evidence = (seen, *facts.evidence, *premises.replies)
        missing = [n for n, one in enumerate(scored, start=1) if one.verdict is None]
        more: dict[str, Any] = {"parts": parts, "evidence": evidence}
        more["verdicts"] = tuple(judged.values())
        if missing:
            first = scored[missing[0] - 1]
            why = f"step {missing[0]} has no verdict: {first.reason}; {'; '.join(told)}"
            return Reward.failed(self.name, first.status, why, **more)
        value = aggregate_steps(scores, options.aggregate, soft=options.soft)
        return Reward(self.name, value, reason="; ".join(told), **more)

    def _part(
        self,
        place: int,
        step: SolutionStep,
        premises: Premises,
        judged: Mapping[str, Verdict],
        scored: JudgeReply[float],
        score: float | None,
    ) -> Reward:
        name = f"step {place + 1}"
        evidence = (Evidence(STEP, step.text[:KEPT]), *scored.evidence)
        verdicts = [judged[claim] for claim in step.premises]
        if place in premises.undeclared:
            why = "undeclared: " + premises.undeclared[place]
            verdicts.append(Verdict("(undeclared premise)", self.options.unknown, reason=why))
        more: dict[str, Any] = {"evidence": evidence, "verdicts": tuple(verdicts)}
        if score is None or scored.verdict is None:
            return Reward.failed(name, scored.status, scored.reason or "no verdict", **more)
        rely = premises.by_step.get(place)
        told = f"verifier {scored.verdict:+.3g}"
        if place in premises.by_step:
            told += ", gate open" if rely is None else f", reliability {rely:.3g}"
        return Reward(name, score, reason=told, **more)


def _why(matched: Matched) -> str:
    by = f" by {matched.by}" * (matched.by != "canonical")
    fact = f": {matched.fact}" * bool(matched.fact)
    where, note = matched.source and f" ({matched.source})", matched.note and f"; {matched.note}"
    return f"{matched.word}{by}{fact}{where}{note}"


def build(judge: JudgeModel, options: Mapping[str, Any]) -> Scorer:
    return EvpvJudge(judge, read_options("evpv", options, EvpvOptions))


# What a model is asked: verdicts on steps, claims beside facts, an audit.

SHOWN_STEP, SHOWN_FACTS, SHOWN_CLAIMS = 4000, 40, 40
"""Characters of a step, facts and claims that a model is shown."""

LIMIT = 1_000_000


_CLAIM = whole(0, LIMIT)
_MATCH: Table[dict[str, Any]] = Table(
    dict, open=True, claim=_CLAIM, outcome=one_of(*Outcome), fact=Maybe(_CLAIM, 0)
)
_CONTRADICTION: Table[dict[str, Any]] = Table(
    dict, open=True, claim=Maybe(_CLAIM, 0), severity=one_of("high", "low"), why=Maybe(loose_text)
)
_AUDIT: Table[dict[str, Any]] = Table(dict, open=True, contradictions=rows(_CONTRADICTION))


def wordings() -> list[str]:
    return [wording(name, PROMPTS) for name in ("extract", "look", "match", "audit", "verify")]


async def ask_verdict(
    judge: JudgeModel,
    question: str,
    before: Sequence[str],
    step: str,
    about: tuple[str, ...],
    *,
    history: int = 12,
    is_strict: bool = True,
    media: Sequence[MediaPart] = (),
) -> JudgeReply[float]:
    """+1 or -1 of one step, by a verifier that sees the question and the steps before it.

    `media` are the question's images and sounds.
    """
    shown = [_line(one, SHOWN_STEP) for one in before[max(0, len(before) - history) :]]
    first = len(before) - len(shown) + 1
    listed = "\n".join(f"{n}. {one}" for n, one in enumerate(shown, start=first)) or "(none)"
    material = {
        "question": [("question", question)],
        "history": [("steps before", listed)],
        "step": [("step", step[:SHOWN_STEP])],
    }
    messages = fenced(wording("verify", PROMPTS), material, media)
    asked = Question("step", messages, (*about, f"step {len(before) + 1}"))

    def read(reply: str) -> float:
        said = after_thoughts(reply)
        found = parse_step_verdict_strict(said) if is_strict else parse_step_verdict(said)
        if found is None:
            raise Unreadable(f"expected 1 or -1 and nothing else, got {said[:60]!r}")
        return float(found)

    return await judge.ask(asked, read)


async def ask_matches(
    judge: JudgeModel, index: FactIndex, matched: dict[str, Matched], about: tuple[str, ...]
) -> Audit:
    """Let the model settle what is unknown, in place.

    Claims of an unreadable reply get the outcome None; one that the reply leaves out stays unknown.
    """
    # Unknown, and short enough to be a fact at all.
    unknown = [claim for claim, one in matched.items() if one.outcome is Outcome.UNKNOWN]
    claims = [claim for claim in unknown if "characters" not in matched[claim].note][:SHOWN_CLAIMS]
    if not claims or not index.facts:
        return Audit()
    facts = index.nearest(claims, SHOWN_FACTS)
    lines = [_line(claim) for claim in claims]
    question = _beside("match", facts, lines, about)
    reply = await judge.ask(question, partial(read_list, table=_MATCH, shown=lines))
    said = {one["claim"]: one for one in reply.verdict or []}
    for number, claim in enumerate(claims, start=1):
        if reply.verdict is None:
            matched[claim] = _unread(matched[claim], "judge", reply)
        elif (one := said.get(number)) is not None:
            shown = facts[one["fact"] - 1] if 1 <= one["fact"] <= len(facts) else None
            text, source = (shown.text, shown.source) if shown is not None else ("", "")
            outcome = Outcome(one["outcome"])
            matched[claim] = Matched(matched[claim].claim, outcome, text, source, "judge")
    return Audit(None, reply.evidence, reply.reason if reply.verdict is None else "")


def _unread(old: Matched, by: str, reply: JudgeReply[Any]) -> Matched:
    return Matched(old.claim, None, by=by, note=reply.reason[:200])


class Audit(NamedTuple):
    """What a model said of the claims of a response."""

    reliability: float | None = None
    """None where no audit could be read."""
    evidence: tuple[Evidence, ...] = ()
    problem: str = ""
    """Why an audit could not be read: the gate of its claims is open."""
    warnings: tuple[str, ...] = ()
    """What was left out."""


async def ask_audit(
    judge: JudgeModel, index: FactIndex, matched: dict[str, Matched], about: tuple[str, ...]
) -> Audit:
    """The reliability of a response from the contradictions that a model lists; settles claims in place.

    The arithmetic is ours: each claim counts once, with its worst severity. Many claims are several
    audits. What the canonical form contradicts stays contradicted.
    """
    every = list(matched)
    parts = [every[n : n + SHOWN_CLAIMS] for n in range(0, len(every), SHOWN_CLAIMS)]
    severities: list[str] = []
    replies: list[JudgeReply[Any]] = []
    warnings: list[str] = []
    for number, claims in enumerate(parts):
        facts, lines = index.nearest(claims, SHOWN_FACTS), [_line(claim) for claim in claims]
        place = (*about, f"audit {number + 1}") if number else about
        asked = _beside("audit", facts, lines, place)
        reply = await judge.ask(asked, partial(read_reply, table=_AUDIT, shown=lines))
        replies.append(reply)
        listed = reply.verdict["contradictions"] if reply.verdict is not None else []
        if (strays := sum(not 1 <= one["claim"] <= len(claims) for one in listed)) > 0:
            warnings.append(f"{strays} contradictions of claims that do not exist were left out")
        for n, claim in enumerate(claims, start=1):
            old, note = matched[claim], ""
            against = [one for one in listed if one["claim"] == n]
            if against:
                first = min(against, key=lambda one: one["severity"] != "high")
                severities.append(first["severity"])
                note = f"{first['severity']}: {first['why']}"[:300]
            if old.outcome is Outcome.CONTRADICTED:
                matched[claim] = old._replace(note=f"audit {note}" if note else old.note)
            elif reply.verdict is None:
                matched[claim] = _unread(old, "audit", reply)
            elif against:
                matched[claim] = Matched(old.claim, Outcome.CONTRADICTED, by="audit", note=note)

    unread = [reply.reason for reply in replies if reply.verdict is None]
    level = reliability_from_audit(severities) if len(unread) < len(replies) else None
    evidence = tuple(one for reply in replies for one in reply.evidence)
    return Audit(level, evidence, unread[0] if unread else "", tuple(dict.fromkeys(warnings)))


def _beside(
    name: str, facts: Sequence[Any], claims: Sequence[str], about: tuple[str, ...]
) -> Question:
    """Facts and claims, numbered, one a line."""
    listed = "\n".join(f"{n}. {_line(one.text)}" for n, one in enumerate(facts, start=1))
    asked = "\n".join(f"{n}. {claim}" for n, claim in enumerate(claims, start=1))
    material = {"facts": [("facts", listed)], "claims": [("claims", asked)]}
    return Question(name, fenced(wording(name, PROMPTS), material), about)


def _line(text: str, most: int = 400) -> str:
    """A text in one line, cut where it is long."""
    flat = " ".join(text[: 4 * most].split())
    return flat if len(flat) <= most else f"{flat[:most]} (cut)"
