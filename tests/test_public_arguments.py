"""Every public function refuses what it cannot work with, in one line that names the argument."""

import importlib
import inspect
import math
import pkgutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

import burnish
from burnish.boundary import argument_types, reader
from burnish.errors import UserError
from burnish.lazy import exported
from public import CASES
from public.calls import CALLS
from public.names import ELSEWHERE, PACKAGES, PUBLISHED

BY_NAME = {case.function.__name__: case for case in CASES}


def spoilt(value):
    """Values of the wrong kind for an argument, by what is wrong with them."""
    if value is None or callable(value):
        return {"none": None, "word": "no such word"}
    if isinstance(value, str):
        return {"none": None, "empty": "", "word": "no such word", "number": 5}
    if isinstance(value, torch.Tensor):
        found = {"none": None, "word": "no such word", "empty": value[:0], "short": value[:-1]}
        odd = ODD if value.is_floating_point() else {}
        return found | {name: first_as(value, bad) for name, bad in {**odd, **off(value)}.items()}
    if isinstance(value, Mapping):
        return {"none": None, "empty": {}, "word": "no such word", "number": 5}
    if isinstance(value, list | tuple):
        found = {"none": None, "word": "no such word", "empty": [], "short": list(value[:-1])}
        if isinstance(value[0], int | float):
            found |= {name: [bad, *value[1:]] for name, bad in {**ODD, **off(value[0])}.items()}
        if isinstance(value[0], str):
            found["item_number"] = [5, *value[1:]]
        return found | {"item_none": [None, *value[1:]]}
    if isinstance(value, int | float):
        return {"none": None, "word": "no such word", **ODD, **off(value)}
    return {"none": None, "word": "no such word"}


ODD = {"nan": math.nan, "inf": math.inf}


def off(value):
    """A number below 0, and one above 1 where a share may be meant."""
    first = value.flatten()[0].item() if isinstance(value, torch.Tensor) else value
    if isinstance(first, bool):
        return {}
    return (
        {"minus": -1, "above": 1.5}
        if isinstance(first, float) and 0 <= first <= 1
        else {"minus": -1}
    )


def is_let(case, argument, kind):
    if kind == "minus":
        return argument in case.signed.split()
    if kind == "above":
        return argument not in case.shares.split()
    return kind in case.lets.get(argument, "").split()


def first_as(tensor, bad):
    changed = tensor.clone()
    changed.view(-1)[0] = bad
    return changed


def numbers_in(result):
    """Every float of a result, at any depth."""
    if isinstance(result, torch.Tensor):
        yield from result.detach().double().flatten().tolist()
    elif isinstance(result, float):
        yield result
    elif isinstance(result, Mapping):
        for inner in result.values():
            yield from numbers_in(inner)
    elif isinstance(result, list | tuple):
        for inner in result:
            yield from numbers_in(inner)


SPOILT = [
    pytest.param(case, argument, kind, bad, id=f"{case.function.__name__}-{argument}-{kind}")
    for case in CASES
    for argument, value in case.given.items()
    for kind, bad in spoilt(value).items()
    if not (value is None and kind == "none")
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.function.__name__)
def test_the_call_itself_works(case):
    assert not any(map(math.isnan, numbers_in(case.function(**case.given))))


@pytest.mark.parametrize(("case", "argument", "kind", "bad"), SPOILT)
def test_a_spoilt_argument_is_handled_or_refused_by_name(case, argument, kind, bad):
    given = {**case.given, argument: bad}
    if is_let(case, argument, kind):
        result = case.function(**given)
        if not case.keeps_nan and kind not in ("minus", "above"):
            assert not any(map(math.isnan, numbers_in(result))), result
        return
    with pytest.raises(UserError) as refusal:
        case.function(**given)
    message = str(refusal.value)
    # Where two lengths or bounds differ, the line may name the other of the two.
    named = case.given if kind in ("short", "empty", "minus", "above") else (argument,)
    assert any(name in message for name in named), message
    assert "\n" not in message


COUNTS = [
    pytest.param(case, argument, id=f"{case.function.__name__}-{argument}")
    for case in CASES
    for argument, value in case.given.items()
    if isinstance(value, int) and not isinstance(value, bool)
]


@pytest.mark.parametrize("huge", [2**62, 2**80, 10**400], ids=["2**62", "2**80", "10**400"])
@pytest.mark.parametrize(("case", "argument"), COUNTS)
def test_a_huge_count_is_refused_or_computed_and_never_hangs(case, argument, huge):
    try:
        result = case.function(**{**case.given, argument: huge})
    except UserError as refusal:
        message = str(refusal)
        # Two bounds or sizes that do not go together may be told of the other one.
        assert any(name in message for name in case.given), message
        assert "\n" not in message
    else:
        assert case.keeps_nan or not any(map(math.isnan, numbers_in(result))), result


WRONG = {
    "none": None,
    "nan": math.nan,
    "word": "x",
    "list": [],
    "dict": {},
    "object": object(),
    "huge": 2**80,
}


@pytest.mark.parametrize(
    ("call", "given", "argument", "bad"),
    [
        pytest.param(call, given, argument, bad, id=f"{call.__name__}-{argument}-{kind}")
        for call, given, lets in CALLS
        for argument in given
        for kind, bad in WRONG.items()
        if f"{argument}-{kind}" not in lets.split()
    ],
)
def test_a_wrong_type_is_refused_by_the_calls_of_the_package(
    call, given, argument, bad, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    arguments = {**given, argument: bad}
    answers = ("7", "8") if call is burnish.judge else ()
    first = [arguments.pop("prompt"), *answers] if answers else []
    with pytest.raises(UserError) as refusal:
        call(*first, **arguments)
    message = str(refusal.value)
    run, data = ("run",), ("data",)
    meant = {"reference": run, "run_a": run, "run_b": run, "task": data}
    meant |= {"held_out": ("format", "share"), "method": ("judge",)}
    assert any(word in message for word in (argument, *meant.get(argument, ()))), message
    assert "\n" not in message
    assert not list(tmp_path.iterdir())


def test_every_annotation_of_a_public_function_can_be_read():
    functions = [case.function for case in CASES if hasattr(case.function, "plain")]
    for function in functions:
        for kind in argument_types(function.plain).values():
            reader(kind)
    print(f"{len(functions)} of {len(CASES)} functions are read by their signature")  # noqa: T201


def test_every_public_function_is_walked_or_named_with_a_reason():
    known = {*BY_NAME, *(name for names in ELSEWHERE.values() for name in names.split())}
    public = {
        name
        for package in PACKAGES
        for name in names_of(package)
        if inspect.isfunction(getattr(package, name))
        and not inspect.iscoroutinefunction(getattr(package, name))
    }
    assert public - known == set()
    assert known - public == {"leading_grade", "relevance_reward"}  # public by their place alone


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.function.__name__)
def test_every_argument_is_walked(case):
    parameters = inspect.signature(case.function).parameters.values()
    open_ended = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    walked = {p.name for p in parameters if p.kind not in open_ended and p.annotation != "bool"}
    assert walked == set(case.given)


@pytest.mark.parametrize("published", PUBLISHED)
def test_published_names_are_found_and_take_their_keywords(published):
    method, _, name = published.rpartition(".")
    found = [
        getattr(module, name)
        for module in modules(
            *("burnish.policy", "burnish.rewards", "burnish.bench", "burnish.agents"),
            *("burnish.tools.spreadsheet", "burnish.models"),
        )
        if getattr(getattr(module, name, None), "__module__", "") == module.__name__
        and (not method or method in module.__name__.split("."))
    ]
    assert [function.__name__ for function in found] == [name]
    assert any(case.function is found[0] for case in CASES)
    assert set(PUBLISHED[published].split()) <= set(inspect.signature(found[0]).parameters)


def names_of(package):
    """What a package exports, and what it or a module defines."""
    listed = exported(Path(package.__file__))
    own = package.__name__
    return {
        *listed,
        *(n for n in dir(package) if n[0] != "_" and home_of(package, n).startswith(own)),
    }


def home_of(module, name):
    return getattr(getattr(module, name), "__module__", "")


def modules(*names):
    for name in names:
        package = importlib.import_module(name)
        yield package
        for module in pkgutil.walk_packages(getattr(package, "__path__", ()), f"{name}."):
            if "resources" not in module.name:
                yield importlib.import_module(module.name)
