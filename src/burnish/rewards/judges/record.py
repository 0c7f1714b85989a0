"""Every question, raw reply and status in one file, and a judge that answers from it.

    judge = JudgeModel(lm, record="judge.jsonl")     # one JSON line a call, appended
    again = replay("judge.jsonl")                    # a JudgeModel that never calls

Since raw replies are kept and not verdicts, another reader, weighting or rule for the two orders
can be tried on the same answers. The lines are also a log that `open_lm("replay:judge.jsonl")`
reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakValueDictionary

from burnish.errors import ModelError, UserError, did_you_mean
from burnish.lm.base import Completion, Prompt, Sampling, Scores
from burnish.lm.failures import BadReply, Refused, TimedOut
from burnish.lm.lines import LineFile, read_lines
from burnish.lm.replay import Recorded, asked_sample
from burnish.records import Message, Status
from burnish.rewards.judges.questions import Question, Reply
from burnish.seeds import digest

if TYPE_CHECKING:
    from burnish.rewards.judges.asking import JudgeModel


class NotRecorded(ModelError):
    """A question that the record does not hold."""


class AskedCall(Recorded, frozen=True, omit_defaults=True):
    """One call to a judge: a line that `ReplayLM` also reads, with what it was for."""

    kind: str = ""
    about: tuple[str, ...] = ()
    vote: int = 0
    round: int = 0
    """0: the question; 1: its first repair."""
    status: Status = Status.OK
    reason: str = ""
    is_cached: bool = False
    seconds: float = 0.0


class Record:
    """An append-only file of calls, open while the judge lives.

    Judges of one process may write to the same file; two processes may not.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        self._lines: _Lines | None = None
        if self.path.exists():  # a file that is something else is refused before a call is paid
            self._lines = _open(self.path)

    def write(
        self,
        asked: Recorded,
        question: Question,
        round: int,
        reply: Reply | None,
        status: Status,
        reason: str,
    ) -> None:
        """One line: the call as it was sent, the raw reply, and what was made of it."""
        if self._lines is None:
            self._lines = _open(self.path)
        self._lines.append(
            AskedCall(
                key=asked.key,
                model=asked.model,
                messages=asked.messages,
                sampling=asked.sampling,
                completions=() if reply is None else (_completion(reply),),
                kind=question.kind,
                about=question.about,
                vote=question.vote,
                round=round,
                status=status,
                reason=reason,
                is_cached=reply is not None and (reply.is_cached or reply.is_replayed),
                seconds=0.0 if reply is None else round_ms(reply.seconds),
            )
        )


class _Lines:
    """One open record file, closed when its last judge is gone."""

    def __init__(self, path: Path) -> None:
        self._file = LineFile(path, AskedCall)
        self._file.__enter__()
        self._file.records.clear()  # checked while they were read; nobody here needs them

    def append(self, call: AskedCall) -> None:
        self._file.append(call)

    def is_still(self, path: Path) -> bool:
        """False after the file was deleted or replaced."""
        return path.exists() and self._file.is_same(path)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.__exit__(None, None, None)


_opened: WeakValueDictionary[Path, _Lines] = WeakValueDictionary()


def _open(path: Path) -> _Lines:
    """The file's one writer in this process."""
    place = path.absolute()
    lines = _opened.get(place)
    if lines is None or not lines.is_still(place):
        lines = _opened[place] = _Lines(place)
    return lines


def round_ms(seconds: float) -> float:
    return round(seconds, 3)


def read_record(path: str | Path) -> list[AskedCall]:
    """Every call of a record, in the order of asking."""
    return read_lines(Path(path).expanduser(), AskedCall)


def replay(path: str | Path, *, model: str | None = None, **settings: Any) -> JudgeModel:
    """A judge that answers from a record and never calls; `settings` as for `JudgeModel`."""
    from burnish.rewards.judges.asking import JudgeModel

    return JudgeModel(RecordLM(path, model=model), **settings)


class RecordLM:
    """The recorded judge as an `LM`.

    A question is found by its words and its seed; by its words alone where the same vote on it was
    asked once. Settings such as `max_tokens` need not be the recorded ones: nothing is generated.
    """

    is_replay = True

    def __init__(self, path: str | Path, *, model: str | None = None, identity: str = "") -> None:
        """`identity` is that of the model on record, which its lines do not tell (`known_as`)."""
        self.path = Path(path).expanduser()
        self.identity = identity
        calls = read_record(self.path)
        self._name = _one_model(calls, model, self.path)
        self._vote = 0
        self._calls: dict[str, dict[int, AskedCall]] = {}
        for call in calls:
            if call.model == self._name and call.sampling is not None:
                of_words = self._calls.setdefault(_words(call.messages), {})
                kept = of_words.get(call.sampling.seed)
                # A question that failed and was asked again later has its answer.
                if kept is None or (not kept.completions and call.completions):
                    of_words[call.sampling.seed] = call

    @property
    def name(self) -> str:
        return self._name

    def voter(self, vote: int) -> Self:
        """The record asked for that vote: an answer given as one vote is not another one."""
        if vote == self._vote:
            return self
        other = copy(self)
        other._vote = vote
        return other

    async def sample(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        messages = tuple(item for item in prompt if isinstance(item, Message))
        by_seed = self._calls.get(_words(messages), {})
        call = by_seed.get(sampling.seed)
        same_vote = [one for one in by_seed.values() if one.vote == self._vote]
        if call is None and len(same_vote) == 1:
            call = same_vote[0]
        if call is None:
            seen = f"asked {len(by_seed)} times with other seeds" if by_seed else "never asked"
            said = messages[-1].content[:60] if messages else ""
            raise NotRecorded(f"{self.path}: the question ending in {said!r} was {seen}")
        if not call.completions:
            raise _failure(call)
        return list(call.completions)

    async def score(
        self, prompt_ids: Sequence[int], response_ids: Sequence[int], *, top_k: int = 0
    ) -> Scores:
        raise ModelError(f"{self.path} is a record of a judge and cannot score tokens")


def asked(model: str, messages: Sequence[Message], sampling: Sampling) -> Recorded:
    """The call as it is keyed in records and caches."""
    return asked_sample(model, messages, sampling)


def _completion(reply: Reply) -> Completion:
    return Completion(
        reply.text,
        finish=reply.finish,
        model=reply.model,
        prompt_tokens=reply.prompt_tokens,
        completion_tokens=reply.completion_tokens,
        cost_usd=reply.cost_usd,
    )


def _failure(call: AskedCall) -> ModelError:
    kinds: dict[Status, type[ModelError]] = {
        Status.TIMEOUT: TimedOut,
        Status.REFUSED: Refused,
        Status.PARSE_ERROR: BadReply,
    }
    return kinds.get(call.status, ModelError)(f"recorded: {call.reason}")


def _words(messages: Sequence[Message]) -> str:
    return digest(*(part for m in messages for part in (m.role, m.content)))


def _one_model(calls: Sequence[AskedCall], wanted: str | None, path: Path) -> str:
    models = sorted({call.model for call in calls})
    if not models:
        raise UserError(f"{path}: the record is empty; write one with JudgeModel(record=...)")
    if wanted is None and len(models) > 1:
        raise UserError(f"{path}: the record holds {', '.join(models)}; choose one with model=")
    if wanted is not None and wanted not in models:
        raise UserError(
            f"{path}: no model '{wanted}' in it, only {', '.join(models)}."
            f"{did_you_mean(wanted, models)}"
        )
    return wanted or models[0]
