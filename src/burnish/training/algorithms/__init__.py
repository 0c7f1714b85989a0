"""The kinds of training; `train.kind` is the name of a module here that has an `ALGORITHM`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from burnish.config.schema import FunctionTrain, Train
from burnish.errors import UserError
from burnish.source import find_function
from burnish.training.algorithm import Algorithm


class Chosen(NamedTuple):
    kind: type[Algorithm[Any, Any]]
    settings: Any


def find_algorithm(train: Train, root: Path = Path()) -> Chosen:
    if not isinstance(train, FunctionTrain):
        module = import_module(f"burnish.training.algorithms.{train.__struct_config__.tag}")
        return Chosen(module.ALGORITHM, train)
    found: Any = find_function(train.path, "algorithm", root)
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise UserError(
            f"train.path: {train.path} is {found!r}; expected a class that inherits from "
            "burnish.training.algorithm.Algorithm"
        )
    return Chosen(found, train.options)
