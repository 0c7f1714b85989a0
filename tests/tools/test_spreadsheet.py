"""Workbooks: ranges and cells by hand, the scorer's two rules, bombs, recalculation."""

import datetime
import io
import zipfile

import hypothesis.strategies as st
import pytest
from hypothesis import given

from burnish.errors import ArgumentError, UserError
from burnish.tools import recalculation, spreadsheet
from burnish.tools.recalculation import recalculate
from burnish.tools.spreadsheet import (
    Spreadsheet,
    SpreadsheetError,
    cells_equal,
    column_name,
    column_number,
    compare_workbooks,
    expand_range,
    open_workbook,
)

openpyxl = pytest.importorskip("openpyxl", reason="the extra 'spreadsheet' is not installed")


def test_columns_by_hand():
    assert [column_name(n) for n in (1, 26, 27, 52, 702, 703, 16384)] == [
        *("A", "Z", "AA", "AZ", "ZZ", "AAA", "XFD")
    ]


@given(st.integers(1, 10**6))
def test_column_names_are_numbers_too(n):
    assert column_number(column_name(n)) == n


def test_ranges_by_hand():
    assert expand_range("B2") == ["B2"]
    assert expand_range("A1:B3") == ["A1", "A2", "A3", "B1", "B2", "B3"]
    assert expand_range("$a$1:b2") == ["A1", "A2", "B1", "B2"]
    assert expand_range("A:B", max_row=2, max_col=9) == ["A1", "A2", "B1", "B2"]
    assert expand_range("2:3", max_row=9, max_col=2) == ["A2", "A3", "B2", "B3"]
    assert expand_range("B2:C", max_row=3, max_col=9) == ["B2", "B3", "C2", "C3"]
    assert expand_range("B2:A1") == ["A1", "A2", "B1", "B2"]
    assert len(expand_range("A:A")) == 1000
    assert len(expand_range("1:1")) == 26


day = datetime.datetime


@pytest.mark.parametrize(
    ("a", "b", "is_equal"),
    [
        (1, 1.0, True), (1.004, 1.0, True), (1.006, 1.0, False), ("3.14159", 3.14, True),
        (" 12 ", 12, True), ("1e3", 1000, True), ("", None, True), (None, None, True),
        (None, 0, False), ("", 0, False), ("a", "A", False), ("a", 1, False), (True, 1, True),
        ("nan", "nan", True), ("nan", "inf", False), (day(2024, 1, 1), 45292, True),
        (day(2024, 1, 1, 11), day(2024, 1, 1), True), (day(2024, 1, 1, 13), day(2024, 1, 1), False),
        (datetime.date(2024, 1, 1), day(2024, 1, 1), True),
        (datetime.time(9, 30, 5), datetime.time(9, 30, 50), True),
        (datetime.time(9, 30), "09:30", True), (datetime.time(9, 30), datetime.time(9, 31), False),
        ("2024-01-01", day(2024, 1, 1), False), (10**400, 10**400, True),
    ],
)  # fmt: skip
def test_cells_by_hand(a, b, is_equal):
    assert cells_equal(a, b) is is_equal
    assert cells_equal(b, a) is is_equal


def book(sheets, *, first=None):
    made = openpyxl.Workbook()
    made.remove(made.active)
    for name, rows in sheets.items():
        sheet = made.create_sheet(name)
        for row in rows:
            sheet.append(row)
    stream = io.BytesIO()
    made.save(stream)
    return stream.getvalue()


def test_the_answer_sheet_counts_and_the_published_rule_ignores_it():
    # Task 13-1: the position names no sheet, the answer is on the second one.
    before = book({"Data": [[1], [2]], "Out": [[None], [None]]})
    gold = book({"Data": [[1], [2]], "Out": [[3], [4]]})
    assert compare_workbooks(gold, before, "A1:A2", "Out", rule="reference").passed is True
    assert compare_workbooks(gold, before, "A1:A2", "Out").passed is False
    assert compare_workbooks(gold, gold, "A1:A2", "Out") == (True, "", 2)


def test_commas_in_a_sheet_name():
    # Task 130-9: the published scorer crashes.
    gold = book({"a, b": [[1, 2]], "c": [[3]]})
    assert compare_workbooks(gold, gold, "'a, b'!A1:B1,'c'!A1") == (True, "", 3)
    assert compare_workbooks(gold, gold, "'a, b'!A1:B1", rule="reference").passed is None
    odd = book({"A1, x": [[1]]})
    assert compare_workbooks(odd, odd, "'A1, x'!A1").passed is True


def test_a_malformed_range_is_read_or_has_no_verdict():
    # Task 73-45: BD2:308 is an empty range to the published scorer on a narrow sheet, and passes.
    wide, narrow = book({"S": [["x", 1], ["y", 2]]}), book({"S": [["x"], ["y"]]})
    assert compare_workbooks(wide, wide, "'S'!B1:2") == (True, "", 2)
    assert compare_workbooks(narrow, narrow, "'S'!C1:2", rule="reference").passed is True
    assert compare_workbooks(narrow, book({"S": [["x", 0, 7]]}), "'S'!C1:2").passed is False
    assert compare_workbooks(wide, wide, "nonsense!!").passed is None


@pytest.mark.parametrize(
    "position", ["S'!A1:B1", "'S!'A1:B1", "'S'!'A1:B1", " S!A1:B1 ", "'s'!A1:B1"]
)
def test_stray_quotes_of_real_positions_are_read(position):
    gold = book({"first": [[0]], "S": [[1, 2]]})
    assert compare_workbooks(gold, gold, position) == (True, "", 2)


def test_a_second_range_stays_on_the_sheet_of_the_first():
    gold, other = book({"a": [[1]], "S": [[1, 2]]}), book({"a": [[1]], "S": [[1, 9]]})
    assert compare_workbooks(gold, other, "'S'!A1,B1").passed is False


def test_an_output_that_is_no_workbook_fails_and_a_broken_gold_file_has_no_verdict():
    gold = book({"S": [[1]]})
    assert compare_workbooks(gold, b"nothing", "A1").passed is False
    assert compare_workbooks(b"nothing", gold, "A1").passed is None
    assert compare_workbooks(gold, book({"T": [[1]]}), "'S'!A1").passed is False


def packed(parts, *, method=zipfile.ZIP_DEFLATED):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return stream.getvalue()


LAUGHS = (
    '<?xml version="1.0"?><!DOCTYPE lolz [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]>'
    "<worksheet>&b;</worksheet>"
)


@pytest.mark.parametrize(
    "data",
    [
        packed({"xl/worksheets/sheet1.xml": b" " * 40_000_000}),
        packed({"xl/workbook.xml": LAUGHS}),
        packed({"xl/workbook.xml": "<a>" + " " * 9000 + '<!ENTITY b "c"></a>'}),
        packed({f"{number}.xml": b"" for number in range(2001)}),
        b"PK\x03\x04 nothing",
        b"",
        packed({"xl/worksheets/sheet1.xml": b'<mergeCell ref="A1:XFD1048576"/>'}),
        packed({"xl/worksheets/sheet1.xml": b"<x:hyperlink id='a' ref='A1:Z4000'/>"}),
        packed({"xl/worksheets/sheet1.xml": b'<mergeCell ref="A1:XFD1"/>' * 3}),
    ],
    ids=[
        *("zip bomb", "entities", "late entities", "many parts", "broken", "empty"),
        *("merged", "linked", "merged often"),
    ],
)
def test_a_bomb_is_refused_in_one_line_before_it_is_parsed(data, monkeypatch):
    monkeypatch.setattr(openpyxl, "load_workbook", None)
    with pytest.raises(SpreadsheetError) as refusal:
        open_workbook(data)
    assert "\n" not in str(refusal.value)


def test_a_bomb_that_lies_about_its_size_is_refused(monkeypatch):
    monkeypatch.setattr(spreadsheet, "MOST_BYTES", 100_000)
    data = packed({"xl/a.xml": b"x" * 200_000})
    lie = data.replace((200_000).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    with pytest.raises(SpreadsheetError):
        open_workbook(lie)


def test_cells_are_read_and_written_within_limits(tmp_path):
    sheet = Spreadsheet(book({"S": [["a", 1], ["b", "=B1*2"]], "T": [[5]]}))
    assert sheet.sheets == {"S": "A1:B2", "T": "A1:A1"}
    assert sheet.read("A1:B2") == {"A1": "a", "A2": "b", "B1": 1, "B2": None}
    assert sheet.read("B2", formulas=True) == {"B2": "=B1*2"}
    sheet.write({"C1": "=B1+1", "A1": 7})
    assert sheet.read("A1:A1") == {"A1": 7}
    sheet.save(tmp_path / "out.xlsx")
    assert Spreadsheet(tmp_path / "out.xlsx").read("C1", formulas=True) == {"C1": "=B1+1"}
    assert [path.name for path in tmp_path.iterdir()] == ["out.xlsx"]
    with pytest.raises(UserError, match="no sheet 'U'"):
        sheet.read("A1", "U")
    with pytest.raises(UserError, match="characters"):
        sheet.write({"A1": "x" * 40_000})
    with pytest.raises(UserError, match="A1"):
        sheet.write({"A1": [1]})


def test_formulas_get_values(tmp_path):
    pytest.importorskip("formulas", reason="the extra 'spreadsheet' is not installed")
    path = tmp_path / "book.xlsx"
    path.write_bytes(book({"Sheet one": [[2, 3], ["=A1*B1", "=SUM(A1:B1)"]]}))
    assert Spreadsheet(path).read("A2:B2") == {"A2": None, "B2": None}
    assert recalculate(path, timeout_s=300) in ("libreoffice", "formulas")
    assert Spreadsheet(path).read("A2:B2", "Sheet one") == {"A2": 6, "B2": 5}


def test_without_an_engine_one_line_says_what_to_install(tmp_path, monkeypatch):
    path = tmp_path / "book.xlsx"
    path.write_bytes(book({"S": [[1]]}))
    monkeypatch.setattr(recalculation, "_office", str)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SpreadsheetError, match=r"Install it, or: pip install"):
        recalculate(path)


def test_a_recalculation_that_takes_too_long_is_killed(tmp_path, monkeypatch):
    path = tmp_path / "book.xlsx"
    path.write_bytes(before := book({"S": [["=A1"]]}))
    monkeypatch.setattr(recalculation, "_office", str)
    monkeypatch.setattr(recalculation, "_FORMULAS", "import time; time.sleep(600)")
    with pytest.raises(SpreadsheetError, match="not recalculated within"):
        recalculate(path, engine="formulas", timeout_s=0.2)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "formula",
    [
        '=WEBSERVICE("http://host/")', "='file:///etc/passwd'#$Sheet1.A1",
        "=INDIRECT(\"'https://host/a.xlsx'#$S.A1\")", "=cmd|'/c calc'!A0",
        '=DDE("soffice";"a";"b")', "='\\\\host\\share\\[a.xlsx]S'!A1",
    ],
)  # fmt: skip
def test_a_formula_that_reaches_outside_is_neither_written_nor_computed(formula, tmp_path):
    path = tmp_path / "book.xlsx"
    path.write_bytes(before := book({"S": [[formula]]}))
    with pytest.raises(SpreadsheetError, match="S!A1 reaches outside"):
        recalculate(path)
    assert path.read_bytes() == before
    with pytest.raises(UserError, match="without files, servers"):
        Spreadsheet().write({"A1": formula})


@pytest.mark.parametrize("formula", ['=HYPERLINK("https://a.org","a")', "=[1]S!A1", "=CALLS(A1)"])
def test_ordinary_formulas_may_be_written(formula):
    Spreadsheet().write({"A1": formula})


def test_libreoffice_runs_with_a_limit_of_memory(tmp_path, monkeypatch):
    office, path = tmp_path / "soffice", tmp_path / "book.xlsx"
    office.write_text("#!/bin/sh\necho limit $(ulimit -v); exit 3\n")
    office.chmod(0o755)
    path.write_bytes(book({"S": [[1]]}))
    monkeypatch.setattr(recalculation, "_office", lambda: str(office))
    with pytest.raises(SpreadsheetError, match=f"limit {4 << 20}"):
        recalculate(path, timeout_s=300)


def test_a_far_cell_costs_nothing_and_is_not_written(tmp_path):
    sheet = Spreadsheet(book({"S": [[1, "=A1"]]}))
    assert sheet.read("XFD1048576") == {"XFD1048576": None}
    assert sheet.sheets == {"S": "A1:B1"}
    for cell in ("XFD1048576", "A10002", "JA1", "ZZZ1"):
        with pytest.raises(UserError, match="near the used cells"):
            sheet.write({cell: 1})
    sheet.write({"A10001": 1})
    sheet.book.worksheets[0]["XFD1048576"].value = "=B1"
    assert [cell.coordinate for cell in spreadsheet.formula_cells(sheet.book)] == [
        "B1",
        "XFD1048576",
    ]


def test_a_formula_that_fills_several_cells_reads_as_its_results(tmp_path):
    from openpyxl import Workbook
    from openpyxl.worksheet.formula import ArrayFormula, DataTableFormula

    book = Workbook()
    book.active["A1"], book.active["A2"] = 2, 3
    book.active["B1"] = ArrayFormula("B1:B2", "=A1:A2*10")
    book.active["D1"] = DataTableFormula("D1:D2")
    book.save(tmp_path / "a.xlsx")
    sheet = Spreadsheet(tmp_path / "a.xlsx")
    assert sheet.read("B1") == {"B1": None}
    assert sheet.read("B1", formulas=True) == {"B1": "=A1:A2*10"}
    assert sheet.read("D1", formulas=True) == {"D1": "=TABLE(D1:D2)"}


def test_an_array_formula_that_reaches_outside_is_not_computed(tmp_path):
    from openpyxl import Workbook
    from openpyxl.worksheet.formula import ArrayFormula

    book = Workbook()
    book.active["B1"] = ArrayFormula("B1:B2", '=WEBSERVICE("http://host/")')
    book.save(tmp_path / "a.xlsx")
    with pytest.raises(SpreadsheetError, match="reaches outside"):
        recalculate(tmp_path / "a.xlsx")


def test_results_of_an_array_formula_are_stored_in_all_its_cells(tmp_path):
    pytest.importorskip("formulas")
    from openpyxl import Workbook
    from openpyxl.worksheet.formula import ArrayFormula

    book = Workbook()
    book.active["A1"], book.active["A2"] = 2, 3
    book.active["B1"] = ArrayFormula("B1:B2", "=A1:A2*10")
    book.save(tmp_path / "a.xlsx")
    recalculate(tmp_path / "a.xlsx", engine="formulas")
    assert Spreadsheet(tmp_path / "a.xlsx").read("B1:B2") == {"B1": 20, "B2": 30}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"A1": "\ud800"}, "plain characters"), ({"A1": "a\x00b"}, "plain characters"),
        ({"A1:B2": 1}, "the name of one cell"), ({"A1": 10**400}, "a number"),
        ({"A1": "='C:\\x\\[a.xlsx]S'!A1"}, "without files"),
        ({"A1": "='[http://x/y.xlsx]S'!A1"}, "without files"),
        ({"A1": "=[/etc/x.xlsx]S!A1"}, "without files"),
        ({"A1": '=IMAGE("http://x/y.png")'}, "without files"),
    ],
)  # fmt: skip
def test_what_a_workbook_cannot_hold_is_refused_and_nothing_is_written(values, said):
    sheet = Spreadsheet()
    with pytest.raises(ArgumentError, match=said):
        sheet.write({"C1": 5} | values)
    assert sheet.read("C1") == {"C1": None}


@pytest.mark.parametrize("kind", ["entity", "utf-16"])
def test_a_merge_in_another_spelling_is_still_a_bomb(kind, tmp_path):
    place = tmp_path / "a.xlsx"
    sheet = Spreadsheet()
    sheet.book.active.merge_cells("A1:B2")
    sheet.save(place)
    bomb = tmp_path / "bomb.xlsx"
    with zipfile.ZipFile(place) as old, zipfile.ZipFile(bomb, "w") as new:
        for name in old.namelist():
            text = old.read(name)
            if "sheet1.xml" in name:
                colon = b"&#58;" if kind == "entity" else b":"
                text = text.replace(b"A1:B2", b"A1" + colon + b"CZ3000")
                text = text.decode().encode("utf-16") if kind == "utf-16" else text
            new.writestr(name, text)
    with pytest.raises(SpreadsheetError, match=r"merged|not in UTF-8"):
        Spreadsheet(bomb)
