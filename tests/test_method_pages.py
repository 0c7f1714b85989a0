"""The cards of `docs/methods` and `docs/recipes.md` name what is there."""

from __future__ import annotations

import importlib
import re
import typing
from pathlib import Path

import msgspec
import pytest

from burnish import policy
from burnish.agents.ssp.rules import Rules, SelfPlay
from burnish.agents.trace2skill import Settings as TraceSettings
from burnish.config.schema import (
    Adversarial,
    CodecTrain,
    DiffusionTrain,
    DistilTrain,
    DpoTrain,
    GeneratorSizes,
    LatentsTrain,
    ProcessRewardModelTrain,
    RewardModelTrain,
    SpeechTrain,
)
from burnish.policy import components
from burnish.rewards.checks.speech_plan import SpeechPlanConfig
from burnish.rewards.config import VersusConfig
from burnish.rewards.judges.atp_bench import AtpOptions
from burnish.rewards.judges.evpv import EvpvOptions
from burnish.rewards.judges.genrm import GenRMOptions
from burnish.rewards.judges.march import MarchOptions
from burnish.rewards.judges.openrs.judge import OpenRSOptions
from burnish.rewards.judges.proxy_rubric import ProxyModelConfig, ProxyRubricConfig
from burnish.rewards.judges.rubric.scorer import RubricOptions
from burnish.rewards.judges.skill_rm import SkillOptions
from burnish.rewards.models.dir_term import DirTerm
from burnish.rewards.models.trained_model import ProcessRewardModelConfig, RewardModelConfig
from burnish.rewards.pairs import GenRMConfig

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
CARDS = sorted((DOCS / "methods").glob("*.md"))
RECIPES = (DOCS / "recipes.md").read_text(encoding="utf-8")

SETTINGS = {
    "grpo": (policy.SumThenNormalise, policy.KL, policy.StaticRegion),
    "dr_grpo": (policy.SumThenNormalise, policy.Aggregate),
    "dapo": (
        policy.InformativeGroups,
        policy.OverlongPenalty,
        policy.StaticRegion,
    ),
    "gspo": (policy.StaticRegion,),
    "gdpo": (policy.NormaliseThenSum, policy.BatchWhiten),
    "etr": (policy.Elastic,),
    "gd2po": (
        policy.SignConflict,
        policy.SnrConflict,
        policy.Magnitude,
        policy.BatchWhiten,
    ),
    "clipo": (policy.Contrastive,),
    "brpo": (policy.Skew, VersusConfig),
    "afrl": (policy.Stepwise, policy.SFT),
    "medalign": (policy.ReferenceFrozen, policy.TriFactor),
    "genrm": (GenRMConfig, GenRMOptions),
    "openrs": (OpenRSOptions,),
    "quarkmedbench": (RubricOptions,),
    "skill_rm": (SkillOptions,),
    "dpo": (DpoTrain,),
    "reward_model": (RewardModelTrain, RewardModelConfig),
    "process_reward_model": (
        ProcessRewardModelTrain,
        ProcessRewardModelConfig,
        policy.Stepwise,
    ),
    "dir": (DirTerm,),
    "proxy_grm": (ProxyRubricConfig, ProxyModelConfig),
    "distil": (DistilTrain,),
    "march": (MarchOptions,),
    "evpv": (EvpvOptions,),
    "atp_bench": (AtpOptions,),
    "long_speech": (SpeechPlanConfig,),
    "trace2skill": (TraceSettings,),
    "ssp": (SelfPlay, Rules, policy.SumThenNormalise),
    "policyalign": (DistilTrain,),
    "diffusion": (DiffusionTrain,),
    "gap": (LatentsTrain,),
    "audio_tokenizer": (CodecTrain, Adversarial, SpeechTrain, GeneratorSizes),
    "siamesenorm": (),  # its settings are those of a model, not of a run
    "ppo": (
        policy.GeneralisedAdvantage,
        policy.SharedCritic,
        policy.SeparateCritic,
    ),
}
SHARED = {"eps", "ddof", "name", "weight", "category", "roles"}
"""Keys that many components and every reward have."""


def rows(text: str, heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, without its head."""
    section = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith("|")]
    return [re.split(r"(?<!\\)\|", line)[1:-1] for line in table[2:]]


def defined(file: Path) -> set[str]:
    """Names that a module defines."""
    dotted = ".".join(file.relative_to(ROOT).with_suffix("").parts).removeprefix("src.")
    return set(vars(importlib.import_module(dotted)))


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.stem)
def test_functions_of_a_card_stand_where_it_says(card: Path) -> None:
    found = rows(card.read_text(encoding="utf-8"), "Equations and functions")
    assert len(found) >= 5
    files: list[str] = []
    for _, functions, where in found:
        files = re.findall(r"`(.+?)`", where) or files  # "same": as in the row before
        names = set(re.findall(r"(?<!reward )(?<!piece )(?<!recipe )`(\w+)`", functions))
        places = (file if file.startswith("lab/") else f"src/burnish/{file}" for file in files)
        known = set().union(*(defined(ROOT / place) for place in places))
        assert names <= known, (functions, files)


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.stem)
def test_a_card_names_every_setting_of_its_components(card: Path) -> None:
    told = " ".join(cell for row in rows(card.read_text(), "Settings") for cell in row)
    words = set(re.findall(r"\w+", told))
    for struct in SETTINGS[card.stem]:
        keys = {field.encode_name for field in msgspec.structs.fields(struct)}
        assert keys - SHARED <= words, struct


PAGES = [DOCS / name for name in ("new_method.md", "recipes.md", "from_trl.md", "from_verl.md")]


@pytest.mark.parametrize("page", [*CARDS, *PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        target = page.parent / link
        # Figures are written by the studies themselves.
        assert (target.parent if link.endswith("results/") else target).exists(), link


def test_the_page_of_recipes_names_every_component() -> None:
    slots = (
        components.Shaping,
        components.Weights,
        components.Advantage,
        components.Critic,
        components.Select,
        components.PostScale,
    )
    later = (components.TrustRegion, components.Surrogate, components.Tokens)
    for slot in (*slots, *later, components.Correction, components.Auxiliary):
        for struct in typing.get_args(slot):
            assert f"`{struct.__struct_config__.tag}`" in RECIPES


def test_every_card_is_linked_from_the_page_of_recipes() -> None:
    assert {card.stem for card in CARDS} == set(SETTINGS)
    for card in CARDS:
        assert f"(methods/{card.name})" in RECIPES


def test_recipes_of_other_libraries_stand_where_the_page_says() -> None:
    found = rows(RECIPES, "Methods of other libraries")
    assert len(found) == 12
    for recipe, _, component, *_ in found:
        (name,) = re.findall(r"`(\w+)`", recipe)
        assert (ROOT / "recipes" / f"{name}.toml").is_file()
        tag, *file = re.findall(r"`([\w.]+)`", component)
        if file and file[0].endswith(".py"):
            structs = vars(importlib.import_module(f"burnish.policy.{file[0][:-3]}")).values()
            tags = {s.__struct_config__.tag for s in structs if hasattr(s, "__struct_config__")}
            assert tag in tags, component
