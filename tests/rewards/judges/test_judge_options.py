"""Options of judges: one line for a value that an option cannot hold."""

import re

import pytest

from burnish.errors import UserError
from burnish.rewards.judges.build import read_options
from burnish.rewards.judges.evpv import EvpvOptions


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"verifier": "non"}, "option 'verifier' is 'non'; expected judge, none."),
        ({"pictures": "ocrr"}, "option 'pictures' is 'ocrr'; expected ignore, ocr, vision."),
        ({"unknown": "x"}, "option 'unknown' is 'x'; expected 'float', got 'str'"),
    ],
)
def test_an_option_with_another_value_names_what_it_may_be(options, said) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        read_options("evpv", options, EvpvOptions)
