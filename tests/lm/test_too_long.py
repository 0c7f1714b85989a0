"""An error that names an overlong prompt stays the same line wherever it travels."""

import copy
import pickle

import pytest

from burnish.errors import UserError
from burnish.lm.base import TooLong

WAYS = [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy]


@pytest.mark.parametrize("way", WAYS, ids=["pickle", "copy", "deepcopy"])
@pytest.mark.parametrize("advice", [(), ("Split it.",)], ids=["usual", "own"])
def test_pickle_and_copy_keep_the_line(way, advice):
    error = TooLong("a prompt of 9 tokens.", *advice)
    error.add_note("asked by a judge")
    found = way(way(error))
    assert type(found) is TooLong
    assert isinstance(found, UserError)
    assert found.what == "a prompt of 9 tokens."
    expected = f"a prompt of 9 tokens. {(*advice, 'Shorten the prompt.')[0]}"
    assert str(found) == str(error) == expected
    assert found.__notes__ == ["asked by a judge"]
