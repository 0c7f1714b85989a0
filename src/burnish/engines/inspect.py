"""A scorer as a scorer of inspect_ai.

    Task(dataset, solver=generate(), scorer=as_inspect(scorer))

The sample's target is the task's `answer`, its metadata are the other fields. A reward without a
value is an unscored sample: kept with its reason, left out of the metrics.
"""

from __future__ import annotations

from typing import Any

from burnish.engines.bridge import Bridge, engine, missing
from burnish.records import Finish, Reward, Status
from burnish.rewards.scorer import Scorer

_REASONS = {Status.PARSE_ERROR: "grader_failed", Status.REFUSED: "grader_failed"}


def as_inspect(scorer: Scorer, **options: Any) -> Any:
    """An inspect_ai scorer with the metrics mean and stderr; options are those of `Bridge`."""
    room = engine("inspect_ai.scorer")
    bridge = Bridge(scorer, **options)

    @room.scorer(metrics=[room.mean(), room.stderr()], name=bridge.name)  # type: ignore[untyped-decorator]
    def factory() -> Any:
        async def score(state: Any, target: Any) -> Any:
            texts = list(target)
            fields = {**(state.metadata or {}), "answer": texts[0] if len(texts) == 1 else texts}
            output = state.output
            finish = Finish.LENGTH if output.stop_reason == "max_tokens" else Finish.STOP
            fields.setdefault("task_id", state.sample_id)
            item = bridge.item(state.input, output.completion, fields, finish=finish)
            (scored,) = await bridge.score_from([item])
            return _score(room, bridge, scored.reward, scored.key, output.completion)

        return score

    return factory()


def _score(room: Any, bridge: Bridge, reward: Reward, key: str, text: str) -> Any:
    metadata = {"trace": key, "status": reward.status.value, **bridge.numbers(reward)}
    if reward.value is not None:
        return room.Score(
            value=reward.value, answer=text, explanation=reward.reason or None, metadata=metadata
        )
    reason = _REASONS.get(reward.status, "scoring_failed")
    return room.Score.unscored(
        reason=reason, answer=text, explanation=missing(reward), metadata=metadata
    )
