"""Settings of distillation that contradict each other or the data, refused before a model is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from burnish.errors import UserError
from burnish.tasks.mapping import check_columns
from burnish.training.policy_text import read_policy
from burnish.training.teacher_context import context_columns, teacher_prompt

if TYPE_CHECKING:
    from burnish.config.schema import Config, DistilTrain
    from burnish.training.data import Data


def check_settings(config: Config, settings: DistilTrain, data: Data) -> None:
    """Refuse them, one line each."""
    tasks = data.open(settings.task)
    check_columns(context_columns(settings), "train.template")
    if settings.policies and (settings.system or settings.template):
        raise UserError(
            "train.policies beside train.system or train.template: teacher and student must "
            "differ by the policy alone. Write the other text into the policy file."
        )
    names = [Path(policy).name for policy in settings.policies]
    if len(set(names)) < len(names):
        raise UserError(f"train.policies: {names} has a name twice; expected different ones.")
    for policy in settings.policies:
        read_policy(data.root / policy)
    if settings.is_self and not (settings.system or settings.template or settings.policies):
        raise UserError(
            f"train.teacher = '{settings.teacher}' is the model itself, and the teacher sees no "
            "more than the student: there is nothing to learn. Give the teacher a context "
            "(train.policies, train.system or train.template) or another model (train.teacher)."
        )
    teacher_prompt(tasks.train(0), settings)
    if settings.answers == "given" and settings.field not in tasks.fields:
        known = ", ".join(sorted(tasks.fields)) or "none"
        raise UserError(
            f"train.answers = 'given': task set '{tasks.name}' has no field "
            f"'{settings.field}'; it has {known}. Name the answers' field in train.field."
        )
    lora = config.model.lora
    if settings.is_frozen and lora is not None and "lm_head" in lora.targets:
        # Logits are computed again in the backward pass, when the adapters are on again.
        raise UserError(
            f"train.teacher = '{settings.teacher}' with 'lm_head' in model.lora.targets; expected a head "
            "without an adapter, which teacher and student share. Leave it out of the targets."
        )
    _check_sampled(config, settings)
    _check_hard(settings)


def _check_sampled(config: Config, settings: DistilTrain) -> None:
    """The sampled estimate needs samples of the very distribution whose divergence it estimates."""
    if settings.divergence != "sampled":
        return
    rollout = config.rollout
    if settings.answers != "student" or settings.top_k:
        got = f"answers = '{settings.answers}'" if settings.answers != "student" else "top_k"
        raise UserError(
            f"train.divergence = 'sampled' with {got}: it reads the log-prob of tokens that the "
            "student sampled and no others. Take divergence = 'reverse' or 'forward'."
        )
    cut = rollout.top_k or rollout.top_p < 1 or rollout.min_p
    if cut or rollout.temperature != settings.temperature:
        raise UserError(
            "train.divergence = 'sampled' needs samples of the student's whole distribution: set "
            f"rollout.temperature = train.temperature (now {rollout.temperature:g} and "
            f"{settings.temperature:g}), and rollout.top_k = 0, top_p = 1, min_p = 0."
        )


def _check_hard(settings: DistilTrain) -> None:
    """Labels are somebody else's tokens, and one token is no distribution to cut or to clip."""
    if settings.divergence == "hard" and settings.answers == "student":
        raise UserError(
            "train.divergence = 'hard' with answers = 'student': the student's own tokens as labels "
            "teach nothing. Take answers = 'teacher' or 'given'."
        )
    if settings.divergence in ("hard", "sampled") and (settings.kl_clip or settings.top_k):
        raise UserError(
            f"train.divergence = '{settings.divergence}' with top_k or kl_clip: it compares no "
            "distributions. Take divergence = 'reverse' or 'forward'."
        )
    if settings.support != "tail" and not settings.top_k:
        raise UserError(
            f"train.support = '{settings.support}' without train.top_k: the whole vocabulary has "
            "no tokens outside. Set train.top_k (PolicyAlign's code: 256)."
        )
