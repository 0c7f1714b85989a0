"""Scorers and tasks for inspect_ai."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from burnish.engines.bridge import Bridge, Item, engine, missing
from burnish.records import Finish, Status, Task
from burnish.rewards.scorer import Scorer


def as_inspect(scorer: Scorer, **options: Any) -> Any:
    """An inspect_ai scorer with the metrics mean and stderr; options are those of `Bridge`."""
    return _scorer(Bridge(scorer, **options), {})


def as_inspect_task(tasks: Sequence[Task], scorer: Scorer, **options: Any) -> Any:
    """An `inspect_ai.Task` of our tasks, answered once each and scored by the scorer.

    Give it another `solver` by `task_with`; options are those of `Bridge`.
    """
    data, models = engine("inspect_ai.dataset"), engine("inspect_ai.model")
    kinds = {
        name: getattr(models, f"ChatMessage{name.title()}")
        for name in ("system", "user", "assistant")
    }
    samples = []
    for task in tasks:
        asked = [kinds[message.role](content=message.text) for message in task.messages]
        target = str(task.fields.get("answer", ""))
        samples.append(data.Sample(input=asked, target=target, id=task.id))
    return engine("inspect_ai").Task(
        dataset=data.MemoryDataset(samples),
        solver=engine("inspect_ai.solver").generate(),
        scorer=_scorer(Bridge(scorer, **options), {task.id: task for task in tasks}),
    )


def _scorer(bridge: Bridge, known: Mapping[Any, Task]) -> Any:
    room = engine("inspect_ai.scorer")

    def item(state: Any, target: Any) -> Item:
        output, texts = state.output, list(target)
        finish = Finish.LENGTH if output.stop_reason == "max_tokens" else Finish.STOP
        fields = {**(state.metadata or {}), "answer": texts[0] if len(texts) == 1 else texts}
        fields.setdefault("task_id", state.sample_id)
        found = bridge.item(state.input, output.completion, fields, finish=finish)
        return found._replace(task=known.get(state.sample_id, found.task))

    @room.scorer(metrics=[room.mean(), room.stderr()], name=bridge.name)  # type: ignore[untyped-decorator]
    def factory() -> Any:
        async def score(state: Any, target: Any) -> Any:
            ((reward, key),) = await bridge.score_from([item(state, target)])
            metadata = {"trace": key, "status": reward.status.value, **bridge.numbers(reward)}
            told = {"answer": state.output.completion, "metadata": metadata}
            if reward.value is not None:
                why = reward.reason or None
                return room.Score(value=reward.value, explanation=why, **told)
            is_graders = reward.status in (Status.PARSE_ERROR, Status.REFUSED)
            reason = "grader_failed" if is_graders else "scoring_failed"
            return room.Score.unscored(reason=reason, explanation=missing(reward), **told)

        return score

    return factory()
