"""A damaged foreign file is one line of its reader, never a library's exception and never other contents."""

import io
import os
import zipfile

import pytest
from hypothesis import given, strategies as st
from openpyxl import Workbook

from burnish.errors import StoreError, UserError
from burnish.rewards.judges.skill_rm.package import read_yaml
from burnish.tools.archives import ArchiveError, open_archive, unpacked
from burnish.tools.search import Source, open_index
from burnish.tools.spreadsheet import SpreadsheetError, open_workbook


def archive():
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("a.txt", "alpha beta " * 50)
        out.writestr("b/c.txt", "gamma")
    return into.getvalue()


def workbook():
    book, into = Workbook(), io.BytesIO()
    book.active.append(["a", 1, "=B1*2"])
    book.save(into)
    return into.getvalue()


def read_archive(data):
    with open_archive(data, most_files=10) as opened:
        return [unpacked(opened, member, 1 << 20) for member in opened.infolist()]


def read_workbook(data):
    sheets = open_workbook(data).worksheets
    return [[cell.value for cell in row] for sheet in sheets for row in sheet.iter_rows()]


def refusal_of(read, data, error):
    try:
        read(data)
    except error as refusal:
        return str(refusal)
    return ""


@pytest.mark.parametrize(
    ("make", "read", "error"),
    [(archive, read_archive, ArchiveError), (workbook, read_workbook, SpreadsheetError)],
    ids=["archive", "workbook"],
)
@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255), is_cut=st.booleans())
def test_a_cut_or_flipped_file_is_read_or_refused_in_one_line(
    make, read, error, place, flip, is_cut
):
    data = make()
    at = int(place * len(data))
    damaged = data[:at] if is_cut else data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :]
    assert "\n" not in refusal_of(read, damaged, error)


@pytest.fixture
def source(tmp_path):
    (tmp_path / "docs").mkdir()
    for name in ("lamp", "radio", "river"):
        (tmp_path / "docs" / f"{name}.txt").write_text(f"{name} stands here. " * 9)
    return tmp_path / "docs"


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone", "longer"])
def test_an_index_with_any_file_damaged_is_refused(source, tmp_path, damage):
    folder = open_index(source, folder=tmp_path / "index").folder
    for path in sorted(one for one in folder.rglob("*") if one.is_file()):
        data = path.read_bytes()
        half = len(data) // 2
        match damage:
            case "cut":
                path.write_bytes(data[:half])
            case "flipped":
                path.write_bytes(data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :])
            case "longer":
                path.write_bytes(data + b"\0")
            case "gone":
                path.unlink()
        with pytest.raises((StoreError, UserError), match="index") as refusal:
            open_index(source, folder=tmp_path / "index")
        assert "\n" not in str(refusal.value)
        path.write_bytes(data)
    assert open_index(source, folder=tmp_path / "index").search("radio")[0].text[:5] == "radio"


def test_a_link_that_leaves_the_corpus_is_refused(source, tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    os.symlink(tmp_path / "secret.txt", source / "link.txt")
    with pytest.raises(UserError, match=r"link\.txt"):
        open_index(Source(str(source)), folder=tmp_path / "index")


@given(st.text(st.sampled_from("ab:- \n[]{}#'\"!&*|>%1?,\t\0"), max_size=60))
def test_any_text_is_yaml_or_a_problem_in_one_line(text):
    assert "\n" not in read_yaml(text).problem
