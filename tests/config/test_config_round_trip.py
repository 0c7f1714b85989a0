"""Whatever a config holds, its printed form loads back as the same config."""

from __future__ import annotations

import tempfile
import typing
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from msgspec import Meta, Struct

from burnish.config import schema, shapes
from burnish.config.loading import load, load_flat, render
from burnish.policy.recipe import Recipe

LARGEST = 1e15


class Sections(Struct, frozen=True, forbid_unknown_fields=True):
    """The real tables of a run, and those of a method."""

    policy: Recipe = Recipe()
    run: schema.Run = schema.Run()
    model: schema.Model = schema.Model()
    rollout: schema.RolloutConfig = schema.SingleTurn()
    optimiser: schema.Optimiser = schema.Optimiser()


# Without infinities: JSON has none, and in a free table nothing says that "inf" is a number.
SCALARS = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False), st.text(),
)  # fmt: skip
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=4
)
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(), bool: st.booleans(), Any: ANYTHING, object: ANYTHING, type(None): st.none(),
}  # fmt: skip


def values(annotation: Any) -> st.SearchStrategy[Any]:
    """Plain values that an annotation allows."""
    if typing.get_origin(annotation) is Annotated:
        kind, *marks = typing.get_args(annotation)
        meta = next((mark for mark in marks if isinstance(mark, Meta)), Meta())
        return numbers(kind, meta) if kind in (int, float) else texts_and_lists(kind, meta)
    found = [option_values(option) for option in shapes.options(annotation)]
    return st.one_of(found)


def texts_and_lists(kind: Any, meta: Meta) -> st.SearchStrategy[Any]:
    return values(kind).filter(lambda plain: len(plain) >= (meta.min_length or 0))


def option_values(option: Any) -> st.SearchStrategy[Any]:
    origin, arguments = typing.get_origin(option), typing.get_args(option)
    if option in PLAIN:
        return PLAIN[option]
    if option in (int, float):
        return numbers(option, Meta())
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        return st.lists(values(arguments[0]), max_size=2)
    if origin is dict:
        return st.dictionaries(st.text(), values(arguments[1]), max_size=2)
    tag = shapes.tag(option)
    own = {tag[0]: st.just(tag[1])} if tag else {}
    fields = {field.key: values(field.annotation) for field in shapes.fields(option)}
    return st.fixed_dictionaries(own | fields).filter(lambda plain: keeps_rules(option, plain))


def keeps_rules(struct: type[Struct], plain: dict[str, Any]) -> bool:
    """True where a table's own checks let its values pass."""
    try:
        msgspec.convert(plain, struct)
    except msgspec.ValidationError:
        return False
    return True


def numbers(kind: type, meta: Meta) -> st.SearchStrategy[Any]:
    low = meta.ge if meta.ge is not None else meta.gt
    if kind is int:
        most = 2**63 - 1 if meta.le is None else int(meta.le)
        return st.integers(0 if low is None else int(low), most)
    small = st.floats(min_value=0.0, max_value=1.0, exclude_max=True)
    high = LARGEST if meta.le is None else min(float(meta.le), LARGEST)
    low = None if low is None else max(float(low), -LARGEST)
    if low is None and meta.le is None:
        return st.just(0.0) | small | st.floats(-LARGEST, LARGEST)
    return st.floats(
        min_value=low, max_value=high, exclude_min=meta.gt is not None, allow_nan=False
    )


# Each table may be missing: with all five at once, nearly every draw breaks a rule of one of them.
SECTIONS = st.fixed_dictionaries(
    {}, optional={field.key: values(field.annotation) for field in shapes.fields(Sections)}
)


# Without shrinking, which takes minutes on a table of this size.
@settings(
    max_examples=50, deadline=None, suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)  # fmt: skip
@given(plain=SECTIONS)
def test_a_rendered_config_loads_back_the_same(plain):
    resolved = load(Sections, plain)
    assert resolved.value == msgspec.convert(plain, Sections)
    assert resolved.flat().keys() == resolved.origins.keys()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "again.toml"
        path.write_text(render(resolved), encoding="utf-8", newline="")
        again = load(Sections, path)
    assert again.value == resolved.value
    assert again.hash == resolved.hash
    assert again.changes(resolved.flat()) == []
    stored = msgspec.json.decode(msgspec.json.encode(resolved.flat()))
    assert load_flat(Sections, stored).value == resolved.value
    assert all(origin.startswith(str(path)) for origin in again.origins.values())


def test_words_reach_into_the_pieces_of_the_real_schema():
    resolved = load(
        schema.Config,
        {"task": {"kind": "arithmetic"}, "rewards": [{"kind": "numeric"}]},
        ["policy.advantage.scale=none", "model.lora.rank=4"],
    )
    assert resolved.value.model.lora == schema.Lora(rank=4)
    assert resolved.flat()["policy.advantage.kind"] == "sum_then_normalise"
    assert resolved.origins["policy.advantage.scale"] == "command line"
