"""What keeps a run from starting or going on, told before anything is computed.

check_pieces(config, ["correct", "format"])      # combinations that make no sense
check_same(resolved, folder, fingerprint, files)   # continued as it was started
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from burnish.config import Config, Resolved
from burnish.config.schema import FREE
from burnish.errors import RunChanged, UserError, did_you_mean
from burnish.policy.pieces import Contrastive, Elastic, Function, OverlongPenalty, TriFactor
from burnish.policy.plugins import load_function
from burnish.policy.recipe import Recipe
from burnish.rewards.combine import Weighted
from burnish.rewards.scorer import bind_check
from burnish.rewards.versus import VersusReference
from burnish.store import manifest
from burnish.tasks.base import TaskSet
from burnish.training.contents import FILES


def check_names(config: Config, scorer: Weighted, tasks: TaskSet) -> None:
    """Every field a reward asks for exists; the evaluation's part is a reward."""
    bind_check(scorer, tasks.fields)
    names = [part.name for part in scorer.children]
    pairwise = [part.name for part in scorer.children if isinstance(part, VersusReference)]
    if config.evaluation.prompts and config.evaluation.part in pairwise:
        raise UserError(
            f"evaluation.part is '{config.evaluation.part}', which compares answers of one group; "
            "a held-out prompt has one answer. Name another reward, with weight 0 if need be"
        )
    if config.evaluation.part and config.evaluation.part not in names:
        raise UserError(
            f"evaluation.part is '{config.evaluation.part}'; expected one of {', '.join(names)}"
        )


def check_pieces(config: Config, rewards: list[str]) -> None:
    """Every function of the recipe loads and fits its slot, and every reward it names exists."""
    recipe = config.policy
    slots: list[tuple[str, object]] = [
        *(("shaping", piece) for piece in recipe.shaping),
        ("advantage", recipe.advantage),
        ("select", recipe.select),
        ("trust_region", recipe.trust_region),
        *(("auxiliary", piece) for piece in recipe.auxiliary),
    ]
    for slot, piece in slots:
        if isinstance(piece, Function):
            load_function(piece, slot)
    for where, name in _named_rewards(recipe):
        if name not in rewards:
            raise UserError(
                f"policy.{where} names the reward '{name}', which the run does not have; "
                f"expected {', '.join(rewards)}.{did_you_mean(name, rewards)}"
            )
    updates = config.update.epochs * config.update.minibatches
    if isinstance(recipe.trust_region, Elastic) and updates == 1:
        raise UserError(
            "policy.trust_region: 'elastic' changes nothing with one update a step, where every "
            "ratio is 1; set update.minibatches or update.epochs above 1"
        )
    if (head := recipe.contrastive) and config.steps <= head.warmup:
        raise UserError(
            f"steps is {config.steps}, and the contrastive head warms up for {head.warmup}: the "
            f"policy would never move. Raise steps or lower "
            f"policy.shaping.{recipe.shaping.index(head)}.warmup"
        )
    if config.curriculum and not (config.evaluation.every and config.evaluation.prompts):
        raise UserError(
            "curriculum goes on to harder tasks when the held-out score stops rising; set "
            "evaluation.every (and evaluation.prompts) above 0"
        )
    if config.warm_start and config.model.lora:
        raise UserError(
            "warm_start trains the whole model, model.lora only adapters; do the warm start in a "
            "run of its own and give its folder as model.path"
        )


def idle_pieces(config: Config) -> list[str]:
    """Pieces that run and change nothing, one line each; a run with them may still be wanted."""
    updates = config.update.epochs * config.update.minibatches
    if isinstance(config.policy.trust_region, Function) and updates == 1:
        return [
            "policy.trust_region: with one update a step every ratio is 1, so no bound can bind; "
            "set update.minibatches or update.epochs above 1."
        ]
    return []


def _named_rewards(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Where a piece names a reward, and the name."""
    for piece in recipe.shaping:
        if isinstance(piece, OverlongPenalty | Contrastive) and piece.reward:
            yield f"shaping: {piece.__struct_config__.tag}", piece.reward
    if recipe.stepwise:
        yield from (("advantage: stepwise", name) for name in recipe.stepwise.rewards)
    if isinstance(recipe.weights, TriFactor):
        yield from (("weights: tri_factor", name) for name in recipe.weights.threshold)


def check_same(
    resolved: Resolved[Config], folder: Path, fingerprint: str, files: dict[str, str]
) -> None:
    """A run is continued only with the config, code, weights and data it was started with."""
    about = manifest.read(folder)
    every = about.config.get("evaluation.every")
    if resolved.value.curriculum and every != resolved.value.evaluation.every:
        raise RunChanged(
            folder.name,
            f"with a curriculum whose stages hang on evaluation.every={every}, now "
            f"{resolved.value.evaluation.every}",
            "change it back",
        )
    values = {k: v for k, v in about.config.items() if not k.startswith(FILES)}
    if changes := resolved.changes(values, FREE):
        raise RunChanged(
            folder.name, f"with another config ({'; '.join(changes)})", "change it back"
        )
    changed = [k for k, v in files.items() if about.config.get(k, v) != v]
    if changed:
        names = ", ".join(key.removeprefix(FILES) for key in changed)
        raise RunChanged(folder.name, f"with other contents of {names}", "restore them")
    if about.data_hash != fingerprint:
        raise RunChanged(
            folder.name,
            f"on other data (fingerprint {about.data_hash}, now {fingerprint})",
            "restore the data",
        )
