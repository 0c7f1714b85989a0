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
            ((reward, key),) = await bridge.score_from([item])
            metadata = {"trace": key, "status": reward.status.value, **bridge.numbers(reward)}
            told = {"answer": output.completion, "metadata": metadata}
            if reward.value is not None:
                why = reward.reason or None
                return room.Score(value=reward.value, explanation=why, **told)
            is_graders = reward.status in (Status.PARSE_ERROR, Status.REFUSED)
            reason = "grader_failed" if is_graders else "scoring_failed"
            return room.Score.unscored(reason=reason, explanation=missing(reward), **told)

        return score

    return factory()
