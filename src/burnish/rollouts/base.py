"""What every kind of rollout shares: its settings, who plays, and the tasks of one step."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import anyio
import msgspec
from msgspec import Meta, Struct

from burnish.activity import advance, waiting_for
from burnish.boundary import (
    Count,
    Draws,
    Name,
    PositiveInt,
    PositiveShare,
    Seconds,
    Settings,
    Share,
)
from burnish.concurrency import gather
from burnish.errors import RolloutError, UserError
from burnish.lm.base import COLDEST, LM, JsonObject, Sampling, one_home
from burnish.lm.failures import EXPECTED, classify
from burnish.records import Finish, Message, Status, Task, Trajectory
from burnish.rollouts.session import (
    NO_LIMITS,
    LimitReached,
    Limits,
    Session,
    naming_task,
    renderer_of,
)
from burnish.seeds import derive
from burnish.source import describe, is_cancelled
from burnish.tensors import LARGEST
from burnish.user_code import calling_user_code

Options = dict[str, object]
"""Arguments of a function or class that a table names."""
ANSWER_TOKENS = 256
"""Of a reply where neither the config nor the task says how long it may be."""


class RolloutSettings(Settings, frozen=True, kw_only=True, tag_field="kind"):
    """How a step samples."""

    is_sampled: ClassVar[bool] = True
    """False where another model may have written the replies."""
    prompts: PositiveInt = 8
    """Prompts of a step."""
    samples: Draws = 8
    """Rollouts of each prompt: the group. One is enough for advantages that compare none (`gae`,
    `batch_normalise`, `greedy_baseline`, `raw`)."""
    max_tokens: Count = 0
    """Tokens sampled in one rollout, over all its turns; 0 chooses when the run begins: room for
    twice the longest demonstration where tasks have some, else 256, within the model's context."""
    temperature: Annotated[float, Meta(ge=COLDEST, le=100.0)] = 1.0
    """Of sampling; the loss takes log-probs at the same temperature."""
    top_k: Count = 0
    """Sample from the likeliest tokens alone; 0: from all."""
    top_p: PositiveShare = 1.0
    """Sample from the likeliest tokens that have this share of probability together."""
    min_p: Share = 0.0
    """Leave out tokens less likely than this share of the likeliest."""
    stop: tuple[str, ...] = ()
    """Texts that end an answer."""
    max_prompt_tokens: PositiveInt = 1024
    """Longest prompt in tokens."""
    overlong_prompts: Literal["error", "drop"] = "error"
    """What happens to prompts over the limit; counted before the first step."""
    score_timeout_s: Seconds = 60.0
    """Deadline of one scoring call."""
    score_concurrency: PositiveInt = 16
    """Scoring calls at a time."""
    max_staleness: Count = 0
    """Optimiser updates by which the weights that sampled a rollout may lag behind the trainer's;
    an older one is sampled again. Servers sample that far ahead; in process nothing lags."""

    @property
    def budget(self) -> int:
        """`max_tokens`, also where no run has chosen it yet."""
        return self.max_tokens or ANSWER_TOKENS

    @property
    def sampling(self) -> Sampling:
        """How a training step samples a task; its seed is set for each task."""
        return Sampling(
            n=self.samples,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            max_tokens=self.budget,
            stop=self.stop,
        )

    def build(self, root: Path = Path()) -> Rollout:
        """The rollout that a training step plays; files are looked up from `root`."""
        raise NotImplementedError

    def build_evaluation(self, root: Path = Path()) -> Rollout:
        """The rollout with which held-out tasks are evaluated."""
        return self.build(root)


class MultiTurnSettings(RolloutSettings, frozen=True, kw_only=True):
    """Settings of rollouts that call the model several times."""

    limits: Limits = Limits()
    """How far one rollout may go."""
    turn_tokens: Count = 0
    """Tokens of one reply; 0: what `max_tokens` leaves."""
    observation_tokens: Count = 256
    """Tokens that tools and the environment are expected to add to one rollout, over all turns; the
    forecast of memory and time counts them, and `length/observed_max` says how many they were."""


@dataclass(frozen=True)
class Players:
    """The model, and everything that one task's rollouts are played with.

    `session` opens a conversation and remembers it, so that a rollout which fails or meets a limit
    still leaves a trajectory of every conversation it had.
    """

    lm: LM
    sampling: Sampling
    """`n` rollouts of the task, with the task's own seed."""
    limits: Limits = NO_LIMITS
    turn_tokens: int = 0
    rounds: Rounds | None = None
    place: tuple[int, int] = (0, 0)
    sessions: list[Session] = field(default_factory=list)

    def session(
        self,
        messages: Sequence[Message],
        *,
        role: str = "policy",
        group: str = "",
        tools: Sequence[JsonObject] = (),
        lm: LM | None = None,
        is_listed: bool = True,
    ) -> Session:
        """A conversation in one role; with `lm`, of another model, which is not trained.

        `players.lm` itself gives a role of the same weights that is not trained. `group` makes a
        baseline group of its own within the task and role.
        """
        limits = msgspec.structs.replace(
            self.limits, tokens=self.limits.tokens or self.sampling.max_tokens
        )
        seed = derive(self.sampling.seed, role)
        opened = Session(
            lm or self.lm, messages, tools=tools, role=role, group=group, seed=seed, limits=limits
        )
        if lm is None and is_listed:
            self.sessions.append(opened)
        return opened

    async def generate(self, session: Session) -> Message:
        """The next reply, sampled together with those of the step's other rollouts."""
        return await session.generate(await self._turn(session))

    async def branch(self, session: Session, count: int) -> list[Session]:
        """`count` replies to one prompt in one call, each in a conversation of its own.

        They take the place of the session where it is trained; of one that is not, those that
        `sessions` is given are.
        """
        sampling = await self._turn(session)
        seed = derive(session.seed, session.turns)
        branches = await session.branch(msgspec.structs.replace(sampling, n=count, seed=seed))
        if session in self.sessions:
            place = self.sessions.index(session)
            self.sessions[place : place + 1] = branches
        return branches

    async def _turn(self, session: Session) -> Sampling:
        """How a reply is sampled, once the step's other rollouts wait for one too."""
        if self.rounds is not None and session.lm is self.lm:
            await self.rounds.wait(self.place)
        tokens = self.turn_tokens or self.sampling.max_tokens
        return msgspec.structs.replace(self.sampling, max_tokens=tokens)


Rollout = Callable[[Task, Players], Awaitable[list[Trajectory]]]
"""All rollouts of one task, in every role; the trajectories of one role are one group."""
Play = Callable[[Task, Players], Awaitable[None]]
"""One rollout of a task, on the sessions of its players."""


class FileOptions(NamedTuple):
    """Which options of a rollout function or game name files, by dotted keys (`corpus_options.path`)."""

    functions: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    """Files and folders that are read; a value that names none is left as it is."""
    written: tuple[str, ...] = ()
    """Files and folders that are written."""


class StepGame:
    """A rollout that plays all tasks of a step as one game, and may remember earlier steps.

    Where tasks need each other (documents of another rollout as noise, a pool of earlier questions),
    subclass this and name the class: `[rollout] kind = "function", path = "my_game.py:MyGame"`. It is
    made once, with the settings of the rollout, the folder where files are looked up, and `options`.
    `play_step` must follow from its arguments and from `state` alone. `remember` moves the state when
    a step is done, from its trajectories alone, so that a step which is read back after a crash
    leaves the same state as one that was played.
    """

    file_options: ClassVar[FileOptions] = FileOptions()
    """Which `options` name files; a rollout function may have an attribute of this name too."""

    spare: int = 0
    """Tasks that come next in the data, for each task of the step, that `play_step` may draw on."""

    async def play_step(
        self, slots: Sequence[Slot], spare: Sequence[Task], lm: LM, sampling: Sampling, seed: int
    ) -> list[list[Trajectory]]:
        """All trajectories of each slot; `roll_out` plays one phase for all slots at once.

        A trajectory's group is its task's id and what follows it: `TASK.solver`, `TASK.solver.1`.
        """
        raise NotImplementedError

    def remember(self, step: int, trajectories: Sequence[Trajectory]) -> Mapping[str, float]:
        """Note a finished step; gives its metrics."""
        return {}

    def state(self) -> JsonObject:
        """What a checkpoint keeps, JSON-able."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's `state()`."""

    def evaluation(self) -> Rollout:
        """The rollout with which held-out tasks are evaluated, one by one."""
        return self

    async def __call__(self, task: Task, players: Players) -> list[Trajectory]:
        sampling = players.sampling
        (played,) = await self.play_step([(0, task)], (), players.lm, sampling, sampling.seed)
        return played


class Rounds:
    """Samples the rollouts of a step together, turn by turn.

    A call waits until every other rollout of the step waits too or has ended. One batch a turn is
    the fastest way to use an in-process model, and the batches do not depend on how long a tool
    took, so that a run can be repeated bit by bit.
    """

    def __init__(self) -> None:
        self._playing: set[tuple[int, int]] = set()
        self._waiting: dict[tuple[int, int], list[anyio.Event]] = {}

    def enter(self, places: Sequence[tuple[int, int]]) -> None:
        self._playing.update(places)

    def leave(self, places: Sequence[tuple[int, int]]) -> None:
        self._playing.difference_update(places)
        self._release()

    async def wait(self, place: tuple[int, int]) -> None:
        """Until every rollout that is being played waits here."""
        event = anyio.Event()
        self._waiting.setdefault(place, []).append(event)
        self._release()
        try:
            await event.wait()
        except BaseException:
            # A cancelled call must not be waited for; another one of the rollout still is.
            if event in (own := self._waiting.get(place, [])):
                own.remove(event)
                if not own:
                    del self._waiting[place]
            raise

    def _release(self) -> None:
        if self._waiting.keys() >= self._playing:
            waiting, self._waiting = self._waiting, {}
            # In the order of the rollouts, so that the batch is always laid out in the same way.
            for place in sorted(waiting):
                for event in waiting[place]:
                    event.set()


async def play_all(
    task: Task,
    players: Players,
    play: Play,
    settings: MultiTurnSettings,
    at_once: AbstractAsyncContextManager[Any] | None = None,
) -> list[Trajectory]:
    """`players.sampling.n` rollouts of a task at once; one that fails has a status.

    `at_once` is entered before a rollout's clock starts: a limiter that many tasks share.
    """
    limits = settings.limits.of_task(task)
    slot = players.place[0]

    async def one(index: int) -> list[Trajectory]:
        seed = derive(players.sampling.seed, index)
        own = replace(
            players,
            sampling=msgspec.structs.replace(players.sampling, n=1, seed=seed),
            limits=limits,
            turn_tokens=settings.turn_tokens,
            place=(slot, index),
            sessions=[],
        )
        try:
            async with at_once or nullcontext():
                return await _play_one(task, own, index, play)
        finally:
            if own.rounds is not None:
                own.rounds.leave([own.place])

    calls = [partial(one, index) for index in range(players.sampling.n)]
    rolled = await gather(calls, limit=len(calls))
    return [trajectory for one_rollout in rolled for trajectory in one_rollout]


async def _play_one(task: Task, players: Players, index: int, play: Play) -> list[Trajectory]:
    status, reason, finish = Status.OK, "", None
    try:
        with anyio.move_on_after(players.limits.time_s) as scope:
            await play(task, players)
        if scope.cancelled_caught:
            status, reason = Status.TIMEOUT, f"the rollout took over {players.limits.time_s:g} s"
    except LimitReached as reached:
        finish = Finish.LENGTH
        for session in players.sessions:
            session.info["ended_by"] = str(reached)
    except EXPECTED as error:
        status, reason = classify(error).status, str(error)
    spoke = [s for s in players.sessions if s.turns]
    if not spoke and status is Status.OK:
        status, reason = Status.INFRA_ERROR, "the rollout ended before the model was asked"
    return [
        session.trajectory(task, index, finish=finish, status=status, reason=reason)
        for session in spoke or players.sessions[:1]
    ] or [failed(task, index, status, reason)]


@contextmanager
def foreign(what: str) -> Iterator[None]:
    """Around code of the user's own: what it raises fails the rollout, with one line."""
    try:
        with calling_user_code():
            yield
    except (UserError, LimitReached, *EXPECTED):
        raise
    except BaseException as error:  # boundary: an environment is foreign code
        if is_cancelled(error):
            raise
        raise RolloutError(f"{what} failed: {describe(error)}") from error


def failed(task: Task, index: int, status: Status, reason: str) -> Trajectory:
    return Trajectory(
        id=f"{task.id}.{index}",
        task_id=task.id,
        group=task.id,
        spans=(),
        text="",
        finish=Finish.ERROR,
        status=status,
        reason=reason,
    )


Slot = tuple[int, Task]


async def roll_out(
    slots: Sequence[Slot],
    lm: LM,
    sampling: Sampling,
    rollout: Rollout,
    seed: int,
    spare: Sequence[Task] = (),
) -> list[list[Trajectory]]:
    """Run every task's rollout at once; results in the order of the slots.

    A task's seed comes from the step's seed and its slot, so company and timing change nothing.
    A `StepGame` plays the slots together, and may draw on `spare` tasks.
    """
    if isinstance(rollout, StepGame):
        return await rollout.play_step(slots, spare, lm, sampling, seed)
    if renderer := renderer_of(lm):
        renderer.prefetch(task.messages for _, task in slots)
    # Calls to a server do not meet in a batch, so nobody waits for anybody there.
    meets = renderer_of(lm) is not None and not getattr(lm, "is_remote", False)
    rounds = Rounds() if meets else None
    places = {slot: [(slot, index) for index in range(sampling.n)] for slot, _ in slots}
    if rounds is not None:
        rounds.enter([place for own in places.values() for place in own])

    async def one(slot: int, task: Task) -> list[Trajectory]:
        own = msgspec.structs.replace(sampling, seed=derive(seed, slot))
        try:
            with naming_task(task), one_home():
                return await rollout(task, Players(lm, own, rounds=rounds, place=(slot, 0)))
        except EXPECTED as error:
            status = classify(error).status
            return [failed(task, index, status, str(error)) for index in range(sampling.n)]
        finally:
            advance("sampler", sampling.n)
            if rounds is not None:
                rounds.leave(places[slot])

    calls = [partial(one, slot, task) for slot, task in slots]
    waiting = waiting_for("sampler", "rollouts", total=len(slots) * sampling.n)
    with waiting, naming_task(*(task for _, task in slots)):
        return await gather(calls, limit=len(calls))


# --- one prompt, one reply


class SingleTurn(RolloutSettings, frozen=True, kw_only=True, tag="single_turn"):
    """One reply to each prompt."""

    def build(self, root: Path = Path()) -> Rollout:
        return single_turn


async def single_turn(task: Task, players: Players) -> list[Trajectory]:
    """One prompt, `n` completions; a trajectory each."""
    branches = await Session(players.lm, task.messages).branch(players.sampling)
    return [branch.trajectory(task, index) for index, branch in enumerate(branches)]


class Recorded(RolloutSettings, frozen=True, kw_only=True, tag="recorded"):
    """Replies from a field of the data: texts, or tables with `text`, `token_ids` and `logprobs`.

    A given reply is scored and trained on. Log-probs that are not known are those of the model as it
    is now. Evaluation samples from the model.
    """

    is_sampled: ClassVar[bool] = False
    field: Name = "completions"
    """Task field with the list of replies; the first `samples` of them are taken."""

    def build(self, root: Path = Path()) -> Rollout:
        return partial(recorded, field=self.field)

    def build_evaluation(self, root: Path = Path()) -> Rollout:
        return single_turn


class GivenReply(Struct, frozen=True, forbid_unknown_fields=True):
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[Annotated[float, Meta(ge=-LARGEST, le=0.0)], ...] = ()
    finish: Finish = Finish.STOP


_Given = Annotated[list[str | GivenReply], Meta(min_length=1)]


async def recorded(task: Task, players: Players, field: str) -> list[Trajectory]:
    """A trajectory for each of the task's given replies."""
    where = f"task {task.id}, field '{field}'"
    try:
        given = msgspec.convert(task.fields.get(field), _Given)
    except msgspec.ValidationError as error:
        raise UserError(
            f"{where}: {error}; expected a list of replies: texts, or tables with text, token_ids and "
            "logprobs. Set rollout.field to the field that holds them."
        ) from None
    found = []
    for index, one in enumerate(given[: players.sampling.n]):
        reply = GivenReply(one) if isinstance(one, str) else one
        known = reply.logprobs
        session = Session(players.lm, task.messages)
        prompt = session.token_ids
        ids = session.append(reply.text, reply.token_ids)
        if known and (len(known) != len(ids) or not reply.token_ids):
            raise UserError(f"{where}: {len(known)} logprobs for {len(ids)} token_ids")
        if not known:
            scored = await players.lm.score(prompt, ids)
            if scored.is_bound:
                raise UserError(
                    f"'{players.lm.name}' has a bound of log-probs only; expected a causal model, or logprobs"
                )
            known = scored.logprobs
        session.train_on(known)
        session.info["logprobs"] = "given" if reply.logprobs else "scored"
        found.append(session.trajectory(task, index, finish=reply.finish))
    return found
