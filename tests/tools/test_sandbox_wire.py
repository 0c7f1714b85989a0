"""The format between candidate and examiner: plain data arrives whole, everything else harmless."""

import json
import os
from collections import Counter, OrderedDict, namedtuple
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings, strategies as st

from burnish.tools.inside import wire

LEAVES = (
    st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.floats(allow_nan=False)
    | st.fractions() | st.decimals(allow_nan=False) | st.complex_numbers(allow_nan=False)
)  # fmt: skip
KEYS = st.none() | st.booleans() | st.integers() | st.text() | st.binary()
PLAIN = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(KEYS, inner)
        | st.sets(KEYS)
        | st.frozensets(KEYS)
    ),
    max_leaves=20,
)


def there_and_back(value):
    return wire.decode(json.loads(json.dumps(wire.encode(value))), handle=lambda number: number)


def same(a, b) -> bool:
    """Equal, and made of the same types all the way down."""
    if type(a) is not type(b) or a != b:
        return False
    if isinstance(a, list | tuple):
        return all(map(same, a, b))
    if isinstance(a, dict):
        return all(same(a[key], b[key]) for key in a)
    return True


@settings(max_examples=50)
@given(PLAIN)
def test_plain_data_arrives_as_it_was(value):
    assert same(there_and_back(value), value)


def test_what_is_special():
    assert str(there_and_back(float("nan"))) == "nan"
    assert there_and_back(float("-inf")) == float("-inf")
    assert str(there_and_back(-0.0)) == "-0.0"
    assert there_and_back(10**6000) == 10**6000
    assert there_and_back(range(3, 10, 2)) == range(3, 10, 2)
    assert there_and_back("\ud800") == "\ud800"
    assert there_and_back({1: "a", "1": "b"}) == {1: "a", "1": "b"}
    assert same(there_and_back(bytearray(b"x")), bytearray(b"x"))
    assert same(
        there_and_back([Fraction(1, 3), Decimal("1.10")]), [Fraction(1, 3), Decimal("1.10")]
    )


def test_subclasses_are_sent_as_what_they_are_made_of():
    class Liar(int):
        def __eq__(self, other):
            return True

        def __index__(self):
            raise RuntimeError

        __hash__ = int.__hash__

    class Silent(list):
        def __iter__(self):
            raise RuntimeError

    Point = namedtuple("Point", "x y")
    assert same(there_and_back(Liar(3)), 3)
    assert same(there_and_back(Silent([1, 2])), [1, 2])
    assert same(there_and_back(Counter("aab")), {"a": 2, "b": 1})
    assert same(there_and_back(OrderedDict(a=1)), {"a": 1})
    assert same(there_and_back(Point(1, 2)), (1, 2))


def test_other_objects_stay_where_they_are():
    kept = []
    sent = wire.encode([1, object()], keep=lambda value: kept.append(value) or 7)
    assert sent == [1, {"h": 7}]
    with pytest.raises(wire.NotPlain, match="function"):
        wire.encode(lambda: 1)
    deep = []
    for _ in range(300):
        deep = [deep]
    with pytest.raises(wire.NotPlain, match="deeper"):
        wire.encode(deep)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.sampled_from([*"iftdszbacrqmh", "x", ""]) | st.text(), inner, max_size=2
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_whatever_arrives_is_plain_or_refused(value):
    """A candidate may write any JSON: it is read as built-in data or as `Broken`."""
    try:
        got = wire.decode(value, handle=lambda number: number)
    except wire.Broken:
        return
    builtin = (type(None), bool, int, str, float, list, tuple, dict, set, frozenset, bytes)
    assert isinstance(got, (*builtin, bytearray, complex, range, Fraction, Decimal))


def test_frames_that_are_too_large_cut_or_no_json():
    def receive(data: bytes):
        reading, writing = os.pipe()
        os.write(writing, data)
        os.close(writing)
        try:
            return wire.Talk((reading, -1)).receive()
        finally:
            os.close(reading)

    assert receive((2).to_bytes(4, "big") + b"[]") == []
    with pytest.raises(EOFError):
        receive((9).to_bytes(4, "big") + b"[]")
    with pytest.raises(wire.Broken, match="not JSON"):
        receive((2).to_bytes(4, "big") + b"[[")
    with pytest.raises(wire.Broken, match="bytes; at most"):
        receive(b"\xff\xff\xff\xff")
    deep = b"[" * 25_000 + b"]" * 25_000
    with pytest.raises(wire.Broken, match="not JSON"):
        receive(len(deep).to_bytes(4, "big") + deep)
