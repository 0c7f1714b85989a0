"""A scorer as a reward function of TRL's GRPO, RLOO and online DPO trainers, and rollouts for GRPO.

TRL takes None for "not scored": such a row leaves the group's mean and gets advantage 0. Parts
are logged as metrics, statuses and the keys of the traces as columns of the completions table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from burnish.engines.background import call
from burnish.engines.bridge import Bridge, Scored, as_messages
from burnish.errors import UserError
from burnish.lm.base import JsonObject, Sampling
from burnish.records import Finish, Message, Status, Task, Trajectory
from burnish.rewards.scorer import Scorer
from burnish.rollouts import Rollout, roll_out
from burnish.seeds import derive, digest

PLAYED = "burnish_rollout"
"""Column in which `as_trl_rollout` tells `as_trl` what was played."""
_NOT_COLUMNS = frozenset({"trainer_state", "log_extra", "log_metric", "environments"}) | {PLAYED}


def as_trl(scorer: Scorer, **options: Any) -> Callable[..., list[float | None]]:
    """`f(prompts, completions, completion_ids, **columns) -> list[float | None]`.

    `options` are those of `Bridge`.
    """
    bridge = Bridge(scorer, **options)

    def reward(
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]] | None = None,
        **given: Any,
    ) -> list[float | None]:
        ids, columns = completion_ids or [()] * len(prompts), given.keys() - _NOT_COLUMNS
        items = []
        for i, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            fields = {key: values[i] for key, values in given.items() if key in columns}
            item = bridge.item(prompt, completion, fields, tokens=len(ids[i]))
            played = given[PLAYED][i] if PLAYED in given else {}
            items.append(item._replace(response=replace(item.response, **played)))
        scored = bridge.score_now(items)
        if scored:
            _log(bridge, scored, given)
        return [one.reward.value for one in scored]

    reward.__name__ = bridge.name
    return reward


def _log(bridge: Bridge, scored: Sequence[Scored], given: JsonObject) -> None:
    """Shares and means as metrics; statuses, traces and parts as columns. A part has its own mean."""
    rows = [bridge.numbers(one.reward) for one in scored]
    statuses = [one.reward.status.value for one in scored]
    metrics = {"valid": sum(row["valid"] for row in rows) / len(rows)}
    columns: JsonObject = {"status": statuses, "trace": [one.key for one in scored]}
    for name in bridge.parts:
        values = [row[name] if row[f"{name}_valid"] else None for row in rows]
        columns[name], known = values, [value for value in values if value is not None]
        metrics |= {name: sum(known) / len(known)} if known else {}
    for status in {*statuses} - {Status.OK.value}:
        metrics[f"status/{status}"] = statuses.count(status) / len(rows)
    for word, table in (("log_metric", metrics), ("log_extra", columns)):
        for name, value in table.items() if given.get(word) else ():
            given[word](f"{bridge.name}/{name}", value)


def as_trl_rollout(rollout: Rollout, *, tasks: Iterable[Task] = ()) -> Callable[..., JsonObject]:
    """A `rollout_func` for TRL's GRPOTrainer: one rollout for each prompt it is given.

    `tasks` are found again by their messages; other prompts are tasks without fields.
    """
    known = {_key(task.messages): task for task in tasks}
    calls, lm_of = count(), lru_cache(maxsize=1)(_trainer_lm)

    def rollout_func(prompts: Sequence[Any], trainer: Any) -> JsonObject:
        lm = lm_of(trainer)
        names = ("temperature", "top_k", "top_p", "min_p")
        given: JsonObject = {name: getattr(trainer, name) or 0 for name in names}
        sampling = Sampling(**given, max_tokens=trainer.max_completion_length)
        slots = [
            (place, known.get(_key(asked), Task(f"prompt-{place}", asked)))
            for place, asked in enumerate(map(as_messages, prompts))
        ]
        own = derive(0, trainer.state.global_step, next(calls), trainer.accelerator.process_index)
        was_training = trainer.model.training
        trainer.model.eval()
        try:
            rolled = call(lambda: roll_out(slots, lm, sampling, rollout, own))
        finally:
            trainer.model.train(was_training)
        end = list(lm.tokenizer.eos_ids[:1] or (lm.tokenizer.pad_id,))
        rows = [_row(trajectory, end) for group in rolled for trajectory in group]
        if len(rows) != len(slots):
            raise UserError(
                f"a rollout for TRL gave {len(rows)} trajectories for {len(slots)} prompts; expected "
                f"one role (got {', '.join(sorted({t.role for group in rolled for t in group}))})"
            )
        return {name: [row[name] for row in rows] for name in rows[0]}

    return rollout_func


def _key(messages: Sequence[Message]) -> str:
    return digest(msgspec.json.encode(tuple(messages)))


def _row(played: Trajectory, end: list[int]) -> JsonObject:
    """What TRL reads of a rollout; of one that failed, an end that nothing is learnt from."""
    size, ids, mask = played.prompt_length, list(played.token_ids), list(played.loss_mask)
    own = {"text": played.text, "finish": played.finish, "info": played.info}
    if played.status is not Status.OK or not played.trained_tokens:
        row = {"prompt_ids": ids[:1] or end, "completion_ids": end, "logprobs": [0.0]}
        return {**row, "env_mask": [0], PLAYED: {**own, "finish": Finish.ERROR}}
    logprobs = iter(played.logprobs)
    values = [next(logprobs) if is_own else 0.0 for is_own in mask[size:]]
    row = {"prompt_ids": ids[:size] or end, "completion_ids": ids[size:], "logprobs": values}
    return {**row, "env_mask": mask[size:], PLAYED: own}


def _trainer_lm(trainer: Any) -> Any:
    """TRL's model, sampled in this process with our seeds and log-probs."""
    import transformers

    from burnish.lm.folder import LoadedModel
    from burnish.lm.local import LocalLM
    from burnish.lm.tokenizer import Tokenizer
    from burnish.lm.transformers_model import TransformersDecoder

    model, theirs = trainer.accelerator.unwrap_model(trainer.model), trainer.processing_class
    tokenizer = Tokenizer(
        theirs.backend_tokenizer,
        special_tokens={k: v for k, v in theirs.special_tokens_map.items() if isinstance(v, str)},
        chat_template=theirs.chat_template,
        pad_id=theirs.pad_token_id,
    )
    # `generate` would add what the model's own file asks for, such as a repetition penalty.
    model.generation_config = transformers.GenerationConfig()
    name = str(getattr(model.config, "name_or_path", "") or "trl")
    return LocalLM(LoadedModel(TransformersDecoder(model), tokenizer, {}, Path(name), name=name))
