"""A proposer's question, and whether it stands: read back by the policy, a judge or code.

Everything that fails here rejects the question and is counted: a reader that gives nothing, a prompt
that is too long, a judge that cannot be reached.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from burnish.agents.ssp.check import (
    READER,
    UNIQUE,
    is_unique,
    judge_messages,
    noise_blocks,
    read_answer,
    read_list,
    read_verdict,
    reader_messages,
    shuffled_documents,
)
from burnish.agents.ssp.rules import Filtered
from burnish.agents.ssp.searching import documents_of
from burnish.agents.ssp.settings import SelfPlay
from burnish.concurrency import gather
from burnish.errors import UserError
from burnish.lm.base import LM, Sampling, TooLong
from burnish.lm.named import open_lm
from burnish.records import Status, Task, Trajectory
from burnish.rewards.checks.match import exact_match
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.prompting import Question, Unreadable
from burnish.rollouts.base import Players, failed, roll_out
from burnish.rollouts.one_turn import single_turn
from burnish.seeds import derive
from burnish.source import describe, find_function
from burnish.user_code import calling_user_code

logger = logging.getLogger(__name__)


@dataclass
class Proposed:
    """One proposer's trajectory and what became of its question."""

    slot: int
    index: int
    retry: int
    golds: list[str]
    trajectory: Trajectory
    found: Filtered | None
    """What the rules say; None where the rollout left nothing."""
    rejected: str = ""
    """Empty, or the filter that rejected the question."""
    noise: int = 0
    readings: list[str | None] = field(default_factory=list)
    """What the readers answered; None: a reader failed."""
    listed: list[str] | None = None
    """What a reader said fits, where it was asked."""
    calls: int = 0
    cost_usd: float = 0.0

    def __post_init__(self) -> None:
        if self.trajectory.status is not Status.OK or self.found is None:
            self.rejected = "failed"
        elif not self.found.valid:
            self.rejected = self.found.rule

    @property
    def valid(self) -> bool:
        """Whether the question counts."""
        return not self.rejected

    @property
    def documents(self) -> list[str]:
        """What the proposer was shown."""
        return documents_of(self.trajectory)

    @property
    def facts(self) -> dict[str, Any]:
        """For the trajectory's `info`."""
        return {
            "question": self.found.question if self.found else "",
            "answer": self.golds,
            "valid": self.valid,
            "rejected": self.rejected,
            "noise": self.noise,
            "readings": self.readings,
            "listed": self.listed,
            "reader_calls": self.calls,
            "cost_usd": self.cost_usd,
        }


class Same(NamedTuple):
    """Whether two answers mean the same; None where nobody could say."""

    said: bool | None
    calls: int = 0
    cost_usd: float = 0.0


Read = Callable[[str, list[str]], Any]
"""A reader in code: question and documents -> answers, best first."""


class Verifier:
    """Reads questions back, and judges answers that do not match word by word."""

    def __init__(self, options: SelfPlay, root: Path = Path(), judge: LM | None = None) -> None:
        """`judge` is a model that is open already, in place of the one that the options name."""
        self.options = options
        sampling = Sampling(
            temperature=options.reader_temperature, max_tokens=options.reader_tokens
        )
        self.judge: JudgeModel | None = None
        if judge is not None or options.judge:
            # Not a server's reader: its option for a key is the server's alone.
            key = options.judge_key_env or None
            lm = judge or open_lm(options.judge, **({"api_key_env": key} if key else {}))
            self.judge = JudgeModel(lm, sampling=sampling)
        reader = options.reader
        self.reader = ("judge" if self.judge else "policy") if reader == "auto" else reader
        self.read: Read | None = None
        if self.reader == "code":
            self.read = find_function(options.reader_path, "reader", root)

    async def check(
        self, proposals: Sequence[Proposed], batch: Sequence[Proposed], lm: LM, seed: int
    ) -> None:
        """Put the questions that passed the rules through the RAG check; `batch` gives the noise."""
        if self.reader == "none":
            return
        left = [proposal for proposal in proposals if proposal.valid]
        shown = {id(p): p.documents for p in batch if p.trajectory.status is Status.OK}
        documents: list[list[str]] = []
        for proposal in left:
            own = shown[id(proposal)]
            others = [texts for key, texts in shown.items() if key != id(proposal)]
            one = derive(seed, proposal.slot, proposal.index)
            noise = noise_blocks(own, others, self.options.noise, one)
            proposal.noise = len(noise)
            documents.append(shuffled_documents(own, noise, one))
        await self._read(left, documents, lm, seed)
        await gather([partial(self._decide, proposal) for proposal in left])
        if self.options.unique:
            still = [(p, d) for p, d in zip(left, documents, strict=True) if p.valid]
            await self._probe([p for p, _ in still], [d for _, d in still], lm, seed)

    async def same_answer(self, question: str, answer: str, golds: Sequence[str]) -> Same:
        """Whether an answer is one of the references: by normalised match, else by the judge."""
        if exact_match(answer, list(golds)):
            return Same(True)
        if self.judge is None:
            return Same(False)
        asked = Question("ssp-match", judge_messages(question, answer, golds))
        reply = await self.judge.ask(asked, read_verdict)
        return Same(reply.verdict, len(reply.replies), sum(r.cost_usd for r in reply.replies))

    async def _decide(self, proposal: Proposed) -> None:
        """Count the readings that found the answer."""
        assert proposal.found is not None
        right = 0
        for reading in proposal.readings:
            if reading is None:
                continue
            same = await self.same_answer(proposal.found.question, reading, proposal.golds)
            proposal.calls += same.calls
            proposal.cost_usd += same.cost_usd
            right += bool(same.said)
        if right < self.options.agreement:
            proposal.rejected = "rag_check"

    async def _read(
        self, left: Sequence[Proposed], documents: Sequence[list[str]], lm: LM, seed: int
    ) -> None:
        """Fill in what the readers answer."""
        if self.read is not None:
            for proposal, texts in zip(left, documents, strict=True):
                found = await self._in_code(proposal, texts)
                proposal.readings = [found[0] if found else None] * self.options.readers
                proposal.listed = found
            return
        told = await self._replies(left, documents, READER, self.options.readers, lm, seed)
        for proposal, replies in zip(left, told, strict=True):
            proposal.readings = [None if r is None else read_answer(r) for r in replies]

    async def _probe(
        self, left: Sequence[Proposed], documents: Sequence[list[str]], lm: LM, seed: int
    ) -> None:
        """Reject questions that more than the answer fits, as far as a reader sees."""
        if self.read is None:
            told = await self._replies(left, documents, UNIQUE, 1, lm, derive(seed, "unique"))
            for proposal, (reply,) in zip(left, told, strict=True):
                proposal.listed = None if reply is None else read_list(reply)
        for proposal in left:
            if not is_unique(proposal.listed or [], proposal.golds):
                proposal.rejected = "not_unique"

    async def _in_code(self, proposal: Proposed, documents: list[str]) -> list[str] | None:
        """Answers of the reader in code; None where it failed or found nothing."""
        assert self.read is not None
        assert proposal.found is not None
        proposal.calls += 1
        try:
            with calling_user_code():
                found = self.read(proposal.found.question, documents)
                found = await found if inspect.isawaitable(found) else found
        except UserError:
            raise
        except Exception as error:  # boundary: a reader is foreign code
            logger.warning("reader '%s' failed: %s", self.options.reader_path, describe(error))
            return None
        listed = [found] if isinstance(found, str) else list(found or ())
        return [str(one) for one in listed] or None

    async def _replies(
        self,
        left: Sequence[Proposed],
        documents: Sequence[list[str]],
        wording: str,
        count: int,
        lm: LM,
        seed: int,
    ) -> list[list[str | None]]:
        """`count` replies to each question; None for one that failed."""
        asked = [
            reader_messages(proposal.found.question, texts, wording)
            for proposal, texts in zip(left, documents, strict=True)
            if proposal.found is not None
        ]
        for proposal in left:
            proposal.calls += count
        if self.reader == "judge":
            calls = [partial(self._judged, p, m, count) for p, m in zip(left, asked, strict=True)]
            return await gather(calls)
        sampling = Sampling(
            n=count,
            temperature=self.options.reader_temperature,
            max_tokens=self.options.reader_tokens,
        )
        slots = [
            (place, Task(proposal.trajectory.task_id, tuple(messages)))
            for place, (proposal, messages) in enumerate(zip(left, asked, strict=True))
        ]
        rolled = await roll_out(slots, lm, sampling, _read_once, derive(seed, "read"))
        return [[t.text if t.status is Status.OK else None for t in group] for group in rolled]

    async def _judged(
        self, proposal: Proposed, messages: Sequence[Any], count: int
    ) -> list[str | None]:
        assert self.judge is not None

        async def one(vote: int) -> str | None:
            assert self.judge is not None
            reply = await self.judge.ask(Question("ssp-read", tuple(messages), vote=vote), _words)
            proposal.cost_usd += sum(r.cost_usd for r in reply.replies)
            return reply.verdict

        return await gather([partial(one, vote) for vote in range(count)])


def _words(text: str) -> str:
    if not text.strip():
        raise Unreadable("expected an answer, got an empty reply")
    return text


async def _read_once(task: Task, players: Players) -> list[Trajectory]:
    """Replies of the policy; a prompt that is too long is a failure of this reading alone."""
    try:
        return await single_turn(task, players)
    except TooLong as error:
        return [failed(task, i, Status.INFRA_ERROR, error.what) for i in range(players.sampling.n)]
