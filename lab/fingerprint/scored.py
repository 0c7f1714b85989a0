"""Judges over recorded replies, scorers over a file of answers, public functions over arguments."""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import inspect
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

import burnish
from lab.fingerprint.flow import Entry, checksum, entry, figure
from lab.fingerprint.replies import reply_to, said
from lab.fingerprint.runs import recipe_flow, reward_bits, reward_text

HERE = Path(__file__).parent
DOCUMENTS = {
    "shop.txt": "Tea costs 14 pounds a crate. Salt costs 9 pounds a sack.",
    "lighthouse.md": "# Lighthouse\n\nIt was built in 1871 by the engineer Mary Holm.",
}
TRAINED = ("reward_model", "process_reward_model")
"""Scorers that are models: the recipe of the same name trains one first."""


@functools.cache
def shipped(file: str) -> dict[str, list[Any]]:
    """A file of cases, each name with its own."""
    found: dict[str, list[Any]] = json.loads((HERE / file).read_text(encoding="utf-8"))
    return found


def judge_flow(name: str) -> list[Entry]:
    """What a judge asks and what it makes of the recorded replies."""
    from burnish.lm import ScriptedLM

    found = []
    for number, case in enumerate(shipped("judged.json")[name]):
        model = ScriptedLM(lambda messages, index: reply_to(said(messages)))
        judged = burnish.judge(
            case["prompt"],
            *case["responses"],
            model=model,
            method=name,
            **case["settings"],
            **case["fields"],
        )
        prompts = sorted(checksum(said(one.prompt)) for one in model.calls)
        found.append(entry(f"case {number}: prompts", exact=prompts))
        rewards = [one.reward for one in judged.answers]
        found += reward_entries(f"case {number}", rewards)
    return found


def scorer_flow(name: str, judge: str) -> list[Entry]:
    """What a scorer gives for the shipped answers."""
    places = {"HERE": str(HERE), "JUDGE": judge, "SOURCE": _documents(), "RUN": ""}
    if name in TRAINED:
        recipe_flow(name, judge)
        places["RUN"] = str(sorted(Path(f"runs/{name}/checkpoints").absolute().iterdir())[-1])
    found = []
    for number, case in enumerate(shipped("answers.json")[name]):
        reward = _placed(case["reward"], places)
        scored = burnish.score(reward, case["prompt"], case["answers"], **case["fields"])
        found += reward_entries(f"case {number}", [one.reward for one in scored])
    return found


def reward_entries(label: str, rewards: list[Any]) -> list[Entry]:
    """The verdicts behind rewards, then the rewards."""
    verdicts = [
        [f"{v.criterion} {'none' if v.value is None else figure(v.value)}" for v in one.verdicts]
        for one in rewards
    ]
    found = [entry(f"{label}: verdicts", exact=verdicts)] if any(verdicts) else []
    texts = [reward_text(one) for one in rewards]
    return [*found, entry(f"{label}: rewards", exact=texts, bits=list(map(reward_bits, rewards)))]


def _documents() -> str:
    folder = Path("documents").absolute()
    folder.mkdir(exist_ok=True)
    for name, text in DOCUMENTS.items():
        (folder / name).write_text(text, encoding="utf-8")
    return str(folder)


def _placed(value: Any, places: Mapping[str, str]) -> Any:
    """A reward's table with the places of this run in it."""
    if isinstance(value, dict):
        return {key: _placed(item, places) for key, item in value.items()}
    if isinstance(value, str):
        for word, place in places.items():
            value = re.sub(rf"^{word}\b", lambda _, place=place: place, value)
    return value


def function_flow(name: str) -> list[Entry]:
    """What a public function gives for its recorded arguments."""
    import torch

    found = []
    for number, case in enumerate(shipped("functions.json")[name]):
        arguments = {key: _decoded(item) for key, item in case.items()}
        function = find_function(name, arguments)
        torch.manual_seed(0)
        given = function(**arguments)
        label = f"case {number}: result"
        found.append(entry(label, exact=plainly(given), bits=plainly(given, to_the_bit=True)))
    return found


def find_function(name: str, arguments: Mapping[str, Any]) -> Callable[..., Any]:
    """The function of that name that takes these arguments, wherever it stands in the package."""
    where, _, bare = name.rpartition(".")
    home = Path(burnish.__file__).parent
    for path in sorted(home.rglob("*.py")):
        if re.search(rf"^(async )?def {bare}\(", path.read_text(encoding="utf-8"), re.MULTILINE):
            module = ".".join(("burnish", *path.relative_to(home).with_suffix("").parts))
            function = getattr(importlib.import_module(module.removesuffix(".__init__")), bare)
            takes = inspect.signature(function).parameters
            if where in module and arguments.keys() <= takes.keys():
                return function
    raise LookupError(f"no function '{name}' takes {', '.join(arguments)}")


def _decoded(value: Any) -> Any:
    import torch

    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"tensor", "dtype"}:
        return torch.tensor(value["tensor"], dtype=getattr(torch, value["dtype"]))
    if value.keys() == {"float"}:
        return float(value["float"])
    if value.keys() == {"pairs"}:
        return dict(value["pairs"])
    return {key: _decoded(item) for key, item in value.items()}


def plainly(value: Any, to_the_bit: bool = False) -> Any:
    """Any result as lists, texts and figures."""
    again = functools.partial(plainly, to_the_bit=to_the_bit)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, float):
        return value.hex() if to_the_bit else figure(value)
    if value is None or isinstance(value, str | int):
        return value
    if hasattr(value, "detach"):
        return again(value.detach().tolist())
    if hasattr(value, "tolist"):
        return again(value.tolist())
    if isinstance(value, msgspec.Struct):
        return again(msgspec.structs.asdict(value))
    if dataclasses.is_dataclass(value):
        return again({one.name: getattr(value, one.name) for one in dataclasses.fields(value)})
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return again(value._asdict())
    if isinstance(value, Mapping):
        return {str(key): again(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    return [again(item) for item in value]
