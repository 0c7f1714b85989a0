"""Validate a config before a model is loaded, and a run before it is continued or reset."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from burnish.config import Config, Resolved
from burnish.config.resolve import flatten, to_plain
from burnish.config.schema import (
    CodecTrain,
    DistilTrain,
    PolicyTrain,
    PretrainTrain,
    SpeechTrain,
    free_keys,
)
from burnish.errors import RunChanged, UserError, did_you_mean
from burnish.lm.base import SHIPPED
from burnish.lm.call_log import remove_paid_replies
from burnish.lm.folder import find_folder
from burnish.lm.new_model import NEW
from burnish.numbers import in_steps
from burnish.policy import (
    BatchNormalise,
    Contrastive,
    Elastic,
    Function,
    GeneralisedAdvantage,
    GreedyBaseline,
    OverlongPenalty,
    Raw,
    SeparateCritic,
    TriFactor,
)
from burnish.policy.plugins import load_function
from burnish.rewards.checks.support import SupportConfig
from burnish.rewards.combine import Weighted
from burnish.rewards.config import FunctionConfig
from burnish.rewards.judges.evpv import EvpvConfig
from burnish.rewards.models.trained_model import (
    ProcessRewardModelConfig,
    TrainedModelConfig,
    find_reward_model,
    newest_checkpoint,
)
from burnish.rewards.scorer import bind_check
from burnish.rewards.versus import VersusReference
from burnish.rollouts import AgentRollout, EnvRollout, FunctionRollout, SingleTurn
from burnish.rollouts.env import SHIPPED_ENVS, SHIPPED_TOOLS, file_options
from burnish.store import RunStore, manifest
from burnish.store.manifest import CALIBRATION
from burnish.tasks.base import TaskSet
from burnish.tools.search.sources import tree_digest
from burnish.training.algorithm import AnyAlgorithm
from burnish.training.curriculum import FILE as DIFFICULTY
from burnish.training.devices import World, world_size
from burnish.training.sound_data import find_tokenizer
from burnish.training.trainable import model_of, start_model

FILES = "files."
"""Prefix of these entries beside the config's own keys."""
EDGE = 1 << 20
"""Bytes at either end of a weight file that are looked at, with its size."""


_WITH_PASSWORD = re.compile(r"https?://[^/#]*@", re.IGNORECASE)


def check_names(config: Config, scorer: Weighted | None, tasks: TaskSet) -> None:
    if scorer is None:
        return
    bind_check(scorer, tasks.fields)
    names, part = [part.name for part in scorer.children], config.evaluation.part
    if part and part not in names:
        raise UserError(f"evaluation.part is '{part}'; expected one of {', '.join(names)}")
    compares = [one.name for one in scorer.children if isinstance(one, VersusReference)]
    if config.evaluation.prompts and part in compares:
        raise UserError(
            f"evaluation.part is '{part}', which compares answers of one group; "
            "a held-out prompt has one answer. Name another reward, with weight 0 if need be"
        )


def check_secrets(flat: Mapping[str, Any]) -> None:
    """Refuse an address with a user or password: the run's folder and trackers would keep it."""
    for key, value in flat.items():
        if isinstance(value, str) and _WITH_PASSWORD.match(value):
            host = value.partition("#")[0].rpartition("@")[2]
            raise UserError(
                f"{key}: the address of {host!r} holds a user or a password, which the run would "
                "store. Put the key into a variable of the environment and name it in api_key_env."
            )


def recipe_faults(config: Config, rewards: Sequence[str]) -> Iterator[str]:
    """What makes no sense together; loads every function of the recipe, which has to fit its slot."""
    recipe = config.policy
    for slot in ("shaping", "advantage", "select", "trust_region", "auxiliary"):
        found = getattr(recipe, slot)
        for piece in found if isinstance(found, tuple) else (found,):
            if isinstance(piece, Function):
                load_function(piece, slot)
    if isinstance(recipe.critic, SeparateCritic) and recipe.critic.path:
        find_critic(recipe.critic.path)
    named = [
        (f"shaping: {piece.__struct_config__.tag}", piece.reward)
        for piece in recipe.shaping
        if isinstance(piece, OverlongPenalty | Contrastive) and piece.reward
    ]
    if recipe.stepwise:
        named += [("advantage: stepwise", name) for name in recipe.stepwise.rewards]
    if isinstance(recipe.weights, TriFactor):
        named += [("weights: tri_factor", name) for name in recipe.weights.threshold]
    for where, name in named:
        if name not in rewards:
            yield (
                f"policy.{where} names the reward '{name}', which the run does not have; "
                f"expected {', '.join(rewards)}.{did_you_mean(name, rewards)}"
            )
    yield from _step_faults(config)
    alone = BatchNormalise | GeneralisedAdvantage | GreedyBaseline | Raw | Function
    compares = getattr(recipe.advantage, "singletons", "zero") == "zero"
    if config.rollout.samples == 1 and compares and not isinstance(recipe.advantage, alone):
        yield (
            f"rollout.samples is 1, and policy.advantage '{recipe.advantage.__struct_config__.tag}' "
            "compares the answers to one prompt with each other; expected at least 2, or an advantage "
            "without groups, such as batch_normalise or gae (with policy.critic=shared or separate)"
        )
    if isinstance(recipe.trust_region, Elastic) and updates_of(config) == 1:
        yield (
            "policy.trust_region: 'elastic' changes nothing with one update a step, where every "
            "ratio is 1; set update.minibatches or update.epochs above 1"
        )
    head = recipe.contrastive
    if head and config.steps <= (warmup := in_steps(head.warmup, config.steps)):
        yield (
            f"steps is {config.steps}, and the contrastive head warms up for {warmup}: the "
            f"policy would never move. Raise steps or lower "
            f"policy.shaping.{recipe.shaping.index(head)}.warmup"
        )
    if config.curriculum and not (config.evaluation.every and config.evaluation.prompts):
        yield (
            "curriculum goes on to harder tasks when the held-out score stops rising; set "
            "evaluation.every (and evaluation.prompts) above 0"
        )


def updates_of(config: Config) -> int:
    return config.update.epochs * config.update.minibatches


def _step_faults(config: Config) -> Iterator[str]:
    """Credit by steps needs a reward that scores the same steps, of one reply."""
    stepwise = config.policy.stepwise
    if stepwise is None or not stepwise.by_steps:
        return
    where = f"policy.advantage: stepwise with split = '{stepwise.split}'"
    if not isinstance(config.rollout, SingleTurn):
        kind = config.rollout.__struct_config__.tag
        yield f"{where} cuts one reply, and rollout.kind is '{kind}'; expected single_turn"
    for reward in [one for one in config.rewards if one.title == stepwise.rewards[0]]:
        if isinstance(reward, ProcessRewardModelConfig | EvpvConfig):
            cut = reward.chosen if isinstance(reward, EvpvConfig) else reward
            if (stepwise.split, stepwise.headings) != (cut.split, cut.headings):
                yield (
                    f"{where} and headings {list(stepwise.headings)}, and its reward "
                    f"'{reward.title}' has split = '{cut.split}' and headings "
                    f"{list(cut.headings)}; expected the same of both"
                )
        elif not isinstance(reward, FunctionConfig):
            yield (
                f"{where} credits steps, and its reward '{reward.title}' (kind "
                f"'{reward.__struct_config__.tag}') scores whole answers; expected "
                "process_reward_model or evpv first, or a function that returns a Reward with a part a step"
            )


def idle_components(config: Config) -> list[str]:
    """Components that run and change nothing, one line each; a run with them may still be wanted."""
    if not isinstance(config.policy.trust_region, Function) or updates_of(config) > 1:
        return []
    return [
        "policy.trust_region: with one update a step every ratio is 1, so no bound can bind; "
        "set update.minibatches or update.epochs above 1."
    ]


def missing_components(config: Config) -> list[str]:
    """Components that the rest of the config asks for, one line each."""
    lag, is_corrected = config.rollout.max_staleness, config.policy.needs_sampler_logprobs
    if not isinstance(config.train, PolicyTrain) or not lag or is_corrected:
        return []
    return [
        f"rollout.max_staleness is {lag} and nothing corrects for older weights; set "
        "policy.correction = { kind = 'truncated' } or 'masked'."
    ]


def check_sharding(config: Config, kinds: Sequence[type[AnyAlgorithm]]) -> None:
    """Refuse `model.shard = "full"` for what needs the whole model in every process."""
    if config.model.shard == "none":
        return
    trains = [*(stage.train for stage in config.stages), config.train]
    for train, kind in zip(trains, kinds, strict=True):
        found = f"train.kind = '{train.__struct_config__.tag}'" * (not kind.shares_model)
        if isinstance(train, PretrainTrain) and train.compile:
            found = "train.compile"
        if found:
            raise UserError(_NEEDS_WHOLE.format(found))
    term = config.policy.imitation
    if config.layer_metrics_every:
        raise UserError(_NEEDS_WHOLE.format("layer_metrics_every"))
    if isinstance(config.train, PolicyTrain) and term is not None and term.gradients_every:
        raise UserError(_NEEDS_WHOLE.format("gradients_every of policy.auxiliary sft"))


_NEEDS_WHOLE = (
    "model.shard = 'full': {} needs the whole model in every process; expected model.shard = 'none', "
    "or a run without it"
)


def check_same(
    resolved: Resolved[Config], folder: Path, fingerprint: str, files: dict[str, str]
) -> None:
    """A run is continued only with the config, code, weights and data it was started with."""
    about = manifest.read(folder)
    every, now = about.config.get("evaluation.every"), resolved.value.evaluation.every
    if resolved.value.curriculum and every != now:
        curriculum = f"with a curriculum whose stages hang on evaluation.every={every}, now {now}"
        raise RunChanged(folder.name, curriculum, "change it back")
    values = {k: v for k, v in about.config.items() if not k.startswith(FILES)}
    if changes := resolved.changes(values, free_keys(resolved.value)):
        what = f"with another config ({'; '.join(changes)})"
        raise RunChanged(folder.name, what, "change it back")
    if changed := [k for k, v in files.items() if about.config.get(k, v) != v]:
        names = ", ".join(key.removeprefix(FILES) for key in changed)
        raise RunChanged(folder.name, f"with other contents of {names}", "restore them")
    if about.data_hash != fingerprint:
        what = f"on other data (fingerprint {about.data_hash}, now {fingerprint})"
        raise RunChanged(folder.name, what, "restore the data")


def check_together(
    world: World, resolved: Resolved[Config], fingerprint: str, files: dict[str, str]
) -> None:
    """Processes train together only with one config, one data set and the same function files.

    Each machine reads its own copies: a reward that was edited on one of them alone would pull the
    shared weights two ways.
    """
    differing = world.differing({**resolved.flat(), **files, "the data": fingerprint})
    if not differing:
        return
    rank, names = next(iter(differing.items()))
    shown = ", ".join(name.removeprefix(FILES) for name in names[:5])
    raise UserError(
        f"process {rank} has other contents of {shown} than process 0; expected the "
        "same config, files and data in every process. Copy those of process 0 to every machine"
    )


def reset(folder: Path) -> bool:
    """Empty the folder of a run that has no completed step, of a stage neither; False otherwise.

    Of several processes none may empty what another one fills.
    """
    if world_size() > 1 or (folder / "stages").is_dir():
        return False
    # Opened once more as its writer: that fails in one line while another process is at work.
    for read_only in (True, False):
        with RunStore.open(folder, read_only=read_only) as store:
            if any(True for _ in store.query("SELECT 1 FROM metrics LIMIT 1")):
                return False
            if not read_only:
                store.discard()
    for name in (CALIBRATION, DIFFICULTY):
        (folder / name).unlink(missing_ok=True)
    remove_paid_replies(folder)
    shutil.rmtree(folder / "crash", ignore_errors=True)
    return True


def find_critic(path: str) -> Path:
    """The folder of the model that a separate critic begins with: a run's newest, or itself."""
    return find_folder(path if path in SHIPPED else newest_checkpoint(Path(path)))


def file_digests(config: Config) -> dict[str, str]:
    """`files.NAME` -> digest, for every function, weight and policy file of a rooted config."""
    found = code_digests(config)

    def add_weights(prefix: str, folder: Path) -> None:
        for path in sorted(folder.glob("*.safetensors")):
            found[f"{FILES}{prefix}{path.name}"] = _edges(path)

    if isinstance(config.train, SpeechTrain):
        add_weights("audio_tokenizer/", find_tokenizer(config.train))
    start = find_folder(start_model(config))
    if config.model.path != NEW:
        add_weights("", start)
    elif isinstance(config.train, CodecTrain | SpeechTrain):
        return found  # its weights follow from the config and the seed
    else:
        found[f"{FILES}tokenizer.json"] = _whole(start / "tokenizer.json")
    trains = (*(stage.train for stage in config.stages), config.train)
    distilled = [train for train in trains if isinstance(train, DistilTrain)]
    policies = [Path(one) for train in distilled for one in train.policies]
    for name, policy in _by_name(policies).items():
        found[f"{FILES}policies/{name}"] = _whole(policy)
    for train in distilled:
        if not train.is_self:
            add_weights("teacher/", find_folder(model_of(train.teacher)))
    critic = config.policy.critic
    if isinstance(critic, SeparateCritic) and critic.path:
        add_weights("critic/", find_critic(critic.path))
    for name, reward in _trained_models("", config.rewards):
        add_weights(f"{name}/", find_reward_model(reward))
    for name, path in _by_name(map(Path, _searched(config))).items():
        found[f"{FILES}{name}"] = tree_digest(path.expanduser())
    return found


def _by_name(paths: Iterable[Path]) -> dict[str, Path]:
    """Each path by its name, with as many folders before it as tell it from the others."""
    every = list(dict.fromkeys(paths))
    found = {}
    for path in every:
        count = 1
        while any(one != path and one.parts[-count:] == path.parts[-count:] for one in every):
            count += 1
        found["/".join(path.parts[-count:])] = path
    return found


def _searched(config: Config) -> Iterator[str]:
    """The files and folders that tools, the environment and rewards of a rooted config search."""
    if isinstance(config.rollout, EnvRollout):
        options = [config.rollout.options] if config.rollout.path in SHIPPED_ENVS else []
        options += [tool.options for tool in config.rollout.tools if tool.path in SHIPPED_TOOLS]
        yield from (str(one["source"]) for one in options if one.get("source"))
    if isinstance(config.rollout, FunctionRollout):
        keys = file_options(config.rollout.path).sources
        named = _options(config.rollout, keys)
        yield from (one for one in named if Path(one).expanduser().exists())
    yield from (one.source for one in config.rewards if isinstance(one, SupportConfig))


def _options(rollout: FunctionRollout, keys: Sequence[str]) -> Iterator[str]:
    for key in keys:
        value: Any = rollout.options
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if isinstance(value, str) and value:
            yield value


def _trained_models(name: str, piece: Any) -> Iterator[tuple[str, TrainedModelConfig]]:
    """Every reward that is a trained model, by its title and those of the rewards around it."""
    if isinstance(piece, tuple):
        for one in piece:
            yield from _trained_models(name, one)
    elif isinstance(piece, Struct):
        own = getattr(piece, "title", "")
        named = f"{name}.{own}" if name and own else name or own
        if isinstance(piece, TrainedModelConfig):
            yield named, piece
        for key in piece.__struct_fields__:
            yield from _trained_models(named, getattr(piece, key))


def code_digests(config: Config) -> dict[str, str]:
    """`files.NAME` -> digest, for every function file of a rooted config; empty for one not there."""
    named = [
        value
        for key, value in flatten(to_plain(config)).items()
        if key.rpartition(".")[2] in ("path", "attribute") and isinstance(value, str)
    ]
    rollout = config.rollout
    if isinstance(rollout, FunctionRollout):
        named += _options(rollout, file_options(rollout.path).functions)
    code = [Path(one.partition(":")[0]) for one in named if ".py:" in one]
    if isinstance(rollout, AgentRollout):
        code += [Path(word) for word in rollout.command[1:] if Path(word).is_file()]
    return {
        f"{FILES}{name}": _whole(path) if path.is_file() else ""
        for name, path in sorted(_by_name(code).items())
    }


def _whole(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _edges(path: Path) -> str:
    """Enough of a weight file to know it again, without reading gigabytes at every start."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(EDGE)
        file.seek(max(size - EDGE, 0))
        tail = file.read(EDGE)
    return hashlib.sha256(str(size).encode() + head + tail).hexdigest()[:16]
