"""Tables as facts: names of rows and columns stay whole, and pages are read as they are shown."""

import anyio
import pytest

from burnish.records import Status
from burnish.rewards.judges.evpv import FactIndex, Outcome, extract_all
from burnish.rewards.judges.evpv.charts import Page, Word, page_facts
from burnish.rewards.judges.evpv.evidence import cell_facts

YES, NO, OPEN = Outcome.SUPPORTED, Outcome.CONTRADICTED, Outcome.UNKNOWN
MEASURES = [["Item", "Count", "Value"], ["Tea", 3, 50], ["Salt", 9, 7]]
LETTERS = [["", "Price"], ["A", 5], ["M", 7], ["B", 9]]
CODES = [["State", "Population"], ["AL", 5], ["LA", 4], ["NM", 2], ["MN", 6]]
CROSSED = [["", "cat", "dog"], ["cat", 50, 5], ["dog", 7, 60]]


@pytest.mark.parametrize(
    ("rows", "claim", "outcome"),
    [
        (MEASURES, "Tea count = 50", NO), (MEASURES, "Count of Tea = 3", YES),
        (MEASURES, "the value of Tea = 3", NO), (MEASURES, "Tea = 50", OPEN),
        (MEASURES, "Tea amount = 3", OPEN),
        ([["Item", "Count"], ["Tea", 3]], "the count of tea is 3", YES),
        ([["Item", "Count"], ["Tea", 3]], "Tea = 4", NO),
        ([["Item", "Count"], ["Tea", 3]], "value of Tea = 3", OPEN),
        (LETTERS, "Price of A = 7", NO), (LETTERS, "Price of A = 5", YES),
        (LETTERS, "A price = 7", NO), (LETTERS, "Price of M = 5", NO), (LETTERS, "Price = 5", OPEN),
        ([["", "Price"], ["M", 7]], "Price of A = 7", OPEN), (CODES, "LA = 5", NO),
        (CODES, "Population of LA = 4", YES), (CODES, "MN is 2", NO), (CODES[:2], "LA = 5", OPEN),
        (CROSSED, "dog cat = 5", NO), (CROSSED, "dog cat = 7", YES),
        (CROSSED, "dog of cat = 5", OPEN), (CROSSED, "cat = 50", OPEN),
        (CROSSED, "cat cat = 50", YES), ([["", "cat"], ["cat", 50]], "cat cat = 40", NO),
        ([["", "Price"], ["Tea to go", 5]], "price of tea to go = 6", NO),
        ([["", "Price"], ["x = y", 5]], "x = 5", OPEN),
    ],
)  # fmt: skip
def test_a_claim_is_matched_with_its_own_row_and_column(rows, claim, outcome):
    assert FactIndex(cell_facts(rows).facts).match(claim).outcome is outcome


def page(words):
    class Blank:
        def turned(self, turns):
            return self

        def box(self, word):
            return "box"

        def colours(self, *sides):
            return []

    return FactIndex(page_facts(Page(words, 0), Blank()).facts)


def test_labels_of_a_chart_keep_the_order_of_their_letters():
    labels = [Word("AL", 50, 50, 70, 60), Word("LA", 100, 50, 120, 60)]
    chart = page([*labels, Word("3", 55, 9, 65, 19), Word("7", 105, 9, 115, 19)])
    assert [chart.match(f"{name} = 3").outcome for name in ("AL", "LA")] == [YES, NO]
    assert page([Word("AB = 10", 0, 0, 70, 12)]).match("BA = 10").outcome is YES  # a diagram


def facts(kind, text):
    found = anyio.run(extract_all, {"type": "table", kind: text})
    return {tuple(fact.text.split(" = ")) for fact in found.facts}, found.unreadable, found.status


HEAD = "<table><tr><th>Item<th>Q1<th>Q2"


@pytest.mark.parametrize(
    ("html", "wanted", "unreadable"),
    [
        (HEAD + "<tr><td>Tea<td colspan=2>5<tr><td>Salt<td>7<td>8</table>",
         {("Tea Q1", "5"), ("Tea Q2", "5"), ("Salt Q1", "7"), ("Salt Q2", "8")}, 0),
        (HEAD + "<tr><td>Tea<td rowspan=2>5<td>6<tr><td>Salt<td>8",
         {("Tea Q1", "5"), ("Tea Q2", "6"), ("Salt Q1", "5"), ("Salt Q2", "8")}, 0),
        (HEAD + "<tr><td>Tea<td rowspan=0>5<td colspan=x>6<tr><td>Salt<td>8",
         {("Tea Q1", "5"), ("Tea Q2", "6"), ("Salt Q1", "5"), ("Salt Q2", "8")}, 0),
        ("<table><tr><th rowspan=2>Item<th colspan=2>Price<tr><th>2019<th>2020<tr><td>Tea<td>5<td>6",
         {("Tea Price 2019", "5"), ("Tea Price 2020", "6")}, 0),
        (HEAD + "<tr><td colspan=3>Drinks<tr><td>Tea<td>5<td>6", {("Tea Q1", "5"), ("Tea Q2", "6")}, 0),
        (HEAD + "<tr><td>Green<br>Tea<td><b>5</b>0<td><del>9</del>8",
         {("Green Tea Q1", "50"), ("Green Tea Q2", "8")}, 0),
        (HEAD + "<tr><td>Tea<td>5<sup>2</sup><td>7<sup>[1]</sup>", {("Tea Q2", "7")}, 1),
        (HEAD + "<tr><td>CO<sub>2</sub><td>3 m<sup>2</sup><td>7", {("CO 2 Q1", "3 m^2"), ("CO 2 Q2", "7")}, 0),
        (HEAD + "<tr><td>Tea<td><script>1</script>5<td><style>x</style>6", {("Tea Q1", "5"), ("Tea Q2", "6")}, 0),
        (HEAD + "<tr><td>Tea 1<sup>2</sup><td>5<td>6", set(), 2),
        (HEAD + "<tr><td>Tea<td>5<td>6<td>7", {("Tea Q1", "5"), ("Tea Q2", "6")}, 1),
        (HEAD + "<tr><td>Tea<td>5<table><tr><th>A<th>B<th>C<tr><td>x<td>1<td>2</table>z<td>6",
         {("Tea Q1", "5"), ("Tea Q2", "6"), ("x B", "1"), ("x C", "2")}, 0),
    ],
)  # fmt: skip
def test_a_page_is_read_as_it_is_shown(html, wanted, unreadable):
    assert facts("html", html) == (wanted, unreadable, Status.OK)


@pytest.mark.parametrize(
    "html",
    [
        "<table></table>",
        "<table><tr></tr></table>",
        "<table>" + ("<tr>" + "<td colspan=1000>x" * 30) * 100,
        HEAD + ("<td rowspan=1000 colspan=1000>x" * 3 + "<tr>") * 1000,
    ],
)
def test_a_page_without_cells_or_with_too_many_is_no_table(html):
    assert facts("html", html) == (set(), 0, Status.PARSE_ERROR)


def test_bars_inside_a_cell_and_cells_without_a_head():
    text = "| Item | Price |\n|---|---|\n| a \\| b | 5 |\n| c | 6 | 7 |"
    wanted = {("a | b Price", "5"), ("a | b", "5"), ("c Price", "6"), ("c", "6")}
    assert facts("markdown", text) == (wanted, 1, Status.OK)
    assert facts("csv", "Item,Price,\nTea,5,9") == ({("Tea Price", "5")}, 1, Status.OK)


def test_a_hostile_cell_is_read_in_linear_time():
    for text in ("<br>" * 100_000, "1<sup>2</sup>" * 50_000, "<del>" * 100_000):
        found = facts("html", HEAD + "<tr><td>Tea<td>" + text + "<td>6")
        assert ("Tea Q2", "6") in found[0] or "<del>" in text
