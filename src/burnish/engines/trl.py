"""A scorer as a reward function of TRL's GRPO, RLOO and online DPO trainers, and rollouts for GRPO.

TRL takes None for "not scored": such a row leaves the group's mean and gets advantage 0. Parts
are logged as metrics, statuses and the keys of the traces as columns of the completions table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from burnish.engines.background import call
from burnish.engines.bridge import Bridge, as_messages, means, status_shares
from burnish.errors import UserError
from burnish.lm.base import JsonObject, Sampling
from burnish.records import Finish, Message, Status, Task, Trajectory
from burnish.rewards.scorer import Scorer
from burnish.rollouts import Rollout, roll_out
from burnish.seeds import derive, digest

_NOT_COLUMNS = frozenset({"trainer_state", "log_extra", "log_metric", "environments"})
PLAYED = "burnish_rollout"
"""Column in which `as_trl_rollout` tells `as_trl` what was played."""


def as_trl(scorer: Scorer, **options: Any) -> Callable[..., list[float | None]]:
    """`f(prompts, completions, completion_ids, **columns) -> list[float | None]`.

    `options` are those of `Bridge`: columns, labels, anchor, trace, deadline_s, limit.
    """
    bridge = Bridge(scorer, **options)

    def reward(
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]] | None = None,
        **given: Any,
    ) -> list[float | None]:
        columns = {k: v for k, v in given.items() if k not in _NOT_COLUMNS and k != PLAYED}
        ids = completion_ids or [()] * len(prompts)
        items = [
            bridge.item(p, c, {k: v[i] for k, v in columns.items()}, tokens=len(ids[i]))
            for i, (p, c) in enumerate(zip(prompts, completions, strict=True))
        ]
        if PLAYED in given:
            played = zip(items, given[PLAYED], strict=True)
            items = [
                item._replace(response=msgspec.structs.replace(item.response, **own))
                for item, own in played
            ]
        scored = bridge.score_now(items)
        _log(bridge, scored, given)
        return [one.reward.value for one in scored]

    reward.__name__ = bridge.name
    return reward


def _log(bridge: Bridge, scored: Sequence[Any], given: Mapping[str, Any]) -> None:
    rewards = [one.reward for one in scored]
    rows = [bridge.numbers(reward) for reward in rewards]
    if rows and (log_metric := given.get("log_metric")):
        log_metric(f"{bridge.name}/valid", sum(row["valid"] for row in rows) / len(rows))
        shares, parts = status_shares(rewards), means(rows, bridge.parts)
        for name, value in (parts | shares).items():
            log_metric(f"{bridge.name}/{name}", value)
    if rows and (log_extra := given.get("log_extra")):
        log_extra(f"{bridge.name}/status", [reward.status.value for reward in rewards])
        log_extra(f"{bridge.name}/trace", [one.key for one in scored])
        for name in bridge.parts:
            values = [row[name] if row[f"{name}_valid"] else None for row in rows]
            log_extra(f"{bridge.name}/{name}", values)


def as_trl_rollout(rollout: Rollout, *, tasks: Iterable[Task] = ()) -> Callable[..., JsonObject]:
    """A `rollout_func` for TRL's GRPOTrainer: one rollout for each prompt it is given.

    TRL gives the prompts alone. `tasks` are those whose fields the environment needs, found again
    by their messages; other prompts are tasks without fields.
    """
    known = {_key(task.messages): task for task in tasks}
    calls = count()
    models: dict[int, Any] = {}

    def rollout_func(prompts: Sequence[Any], trainer: Any) -> JsonObject:
        if id(trainer) not in models:
            models[id(trainer)] = _trainer_lm(trainer)
        lm = models[id(trainer)]
        sampling = Sampling(
            temperature=trainer.temperature,
            top_k=trainer.top_k or 0,
            top_p=trainer.top_p,
            min_p=trainer.min_p or 0.0,
            max_tokens=trainer.max_completion_length,
        )
        asked = [as_messages(prompt) for prompt in prompts]
        slots = [
            (place, known.get(_key(messages), Task(f"prompt-{place}", messages)))
            for place, messages in enumerate(asked)
        ]
        own = derive(0, trainer.state.global_step, next(calls), trainer.accelerator.process_index)
        was_training = trainer.model.training
        trainer.model.eval()
        try:
            rolled = call(lambda: roll_out(slots, lm, sampling, rollout, own))
        finally:
            trainer.model.train(was_training)
        played = [trajectory for group in rolled for trajectory in group]
        if len(played) != len(slots):
            raise UserError(
                f"a rollout for TRL gave {len(played)} trajectories for {len(slots)} prompts; expected "
                f"one role (got {', '.join(sorted({one.role for one in played}))})"
            )
        return _columns(played, lm.tokenizer)

    return rollout_func


def _key(messages: Sequence[Message]) -> str:
    return digest(msgspec.json.encode(tuple(messages)))


def _columns(played: Sequence[Trajectory], tokenizer: Any) -> JsonObject:
    end = list(tokenizer.eos_ids[:1] or (tokenizer.pad_id,))
    columns: JsonObject = {
        "prompt_ids": [], "completion_ids": [], "logprobs": [], "env_mask": [], PLAYED: []
    }  # fmt: skip
    for trajectory in played:
        is_whole = trajectory.status is Status.OK and trajectory.trained_tokens > 0
        size = trajectory.prompt_length
        ids, mask = list(trajectory.token_ids), list(trajectory.loss_mask)
        logprobs = iter(trajectory.logprobs)
        columns["prompt_ids"].append((ids[:size] if is_whole else ids[:1]) or end)
        columns["completion_ids"].append(ids[size:] if is_whole else end)
        columns["env_mask"].append(mask[size:] if is_whole else [0])
        values = [next(logprobs) if is_own else 0.0 for is_own in mask[size:]]
        columns["logprobs"].append(values if is_whole else [0.0])
        finish = trajectory.finish if is_whole else Finish.ERROR
        own = {"text": trajectory.text, "finish": finish, "info": trajectory.info}
        columns[PLAYED].append(own)
    return columns


def _trainer_lm(trainer: Any) -> Any:
    """TRL's model, sampled in this process with our seeds and log-probs."""
    import transformers

    from burnish.lm.folder import LoadedModel
    from burnish.lm.local import LocalLM
    from burnish.lm.tokenizer import Tokenizer
    from burnish.lm.transformers_model import TransformersDecoder

    model = trainer.accelerator.unwrap_model(trainer.model)
    theirs = trainer.processing_class
    tokenizer = Tokenizer(
        theirs.backend_tokenizer,
        special_tokens={k: v for k, v in theirs.special_tokens_map.items() if isinstance(v, str)},
        chat_template=theirs.chat_template,
        pad_id=theirs.pad_token_id,
    )
    decoder = TransformersDecoder(model)
    # `generate` would add what the model's own file asks for, such as a repetition penalty.
    model.generation_config = transformers.GenerationConfig()
    name = str(getattr(model.config, "name_or_path", "") or "trl")
    return LocalLM(LoadedModel(decoder, tokenizer, {}, Path(name), name=name))
