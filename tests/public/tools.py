"""One valid call of every public function of tools, and what it lets pass."""

from burnish.tools import search, spreadsheet
from public.common import Case

CASES = [
    Case(
        search.reciprocal_rank_fusion,
        {"rankings": [["a", "b"], ["b"]]},
        {"rankings": "empty short"},
    ),
    Case(
        search.shown_passages,
        {"passages": [search.Passage("a", "one"), search.Passage("b", "two")], "characters": 20},
        {"passages": "empty short"},
    ),
    Case(search.tokens, {"text": "two words"}, {"text": "empty word"}),
    Case(spreadsheet.column_name, {"n": 27}),
    Case(spreadsheet.column_number, {"name": "AA"}),
    Case(
        spreadsheet.expand_range,
        {"text": "A1:B2", "max_row": 9, "max_col": 9},
        {"max_row": "none", "max_col": "none"},
    ),
    Case(
        spreadsheet.cells_equal,
        {"a": 1.0, "b": 2.0},
        {"a": "none word inf", "b": "none word inf"},
        signed="a b",
    ),
]
