"""Reading and cutting: stable ids, every format alike, one clear line for what cannot be read."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from search_cases import ROWS, write_rows

from burnish.errors import UserError
from burnish.tools.search import Passage, Source, read_passages
from burnish.tools.search.sources import cut, table_rows


def read(path: Path, **options) -> list[Passage]:
    return list(read_passages(Source(str(path), **options)))


EXPECTED = [Passage(r["id"], r["text"], r["title"]) for r in ROWS]


def test_every_format_gives_the_same_passages(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    jsonl = write_rows(tmp_path / "r.jsonl")
    table, tabs = tmp_path / "r.csv", tmp_path / "r.tsv"
    for path, delimiter in ((table, ","), (tabs, "\t")):
        with path.open("w", newline="", encoding="utf-8-sig") as file:
            writer = csv.DictWriter(file, ["id", "title", "text"], delimiter=delimiter)
            writer.writeheader()
            writer.writerows(ROWS)
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "r.parquet")
    for path in (jsonl, table, tabs, tmp_path / "r.parquet"):
        assert read(path) == EXPECTED, path


def test_a_folder_of_texts(tmp_path):
    (tmp_path / "b.txt").write_text("plain text")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "lamp.md").write_text("intro\n\n# The Lamp #\n\nTwo batteries.")
    (tmp_path / ".hidden.txt").write_text("no")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    (tmp_path / "empty.txt").write_text("  \n")
    write_rows(tmp_path / "more.jsonl", [{"text": "without an id"}, {"text": "second"}])
    found = read(tmp_path)
    assert [(p.id, p.title) for p in found] == [
        ("a/lamp.md", "The Lamp"), ("b.txt", "b"), ("more.jsonl:1", ""), ("more.jsonl:2", ""),
    ]  # fmt: skip


def test_long_documents_are_cut_at_paragraphs_with_stable_ids():
    text = "First one.\n\nSecond one.\n\n" + "x" * 30 + ". " + "y" * 30 + ".\n\nLast."
    pieces = cut(Passage("d", text, "T"), 40)
    assert [p.id for p in pieces] == ["d#1", "d#2", "d#3"]
    assert [p.text for p in pieces] == [
        "First one.\n\nSecond one.",
        "x" * 30 + ".",
        "y" * 30 + ".\n\nLast.",
    ]
    assert {p.title for p in pieces} == {"T"}
    assert cut(Passage("d", "short"), 40) == [Passage("d", "short")]


@given(st.text(alphabet="ab .。\n壶", max_size=400), st.integers(40, 90))
def test_cutting_loses_no_letter_and_keeps_to_the_limit(text, longest):
    pieces = cut(Passage("d", text), longest)
    assert all(0 < len(p.text) <= longest for p in pieces)
    assert "".join("".join(p.text.split()) for p in pieces) == "".join(text.split())
    assert len({p.id for p in pieces}) == len(pieces)


def test_columns_by_name_and_ids_by_row(tmp_path):
    rows = [{"key": 7, "body": "seven", "other": 1}, {"key": 8, "body": None}]
    path = write_rows(tmp_path / "r.jsonl", rows)
    assert read(path, id="key") == [Passage("7", "seven")]
    assert read(path) == [Passage("1", "seven")]
    with pytest.raises(UserError, match=r"no column 'bdy'.*Did you mean 'body'"):
        read(path, text="bdy")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("r.jsonl", '{"text": "a"}\n{"text": ', r"r.jsonl:2: (not JSON|got a list)"),
        ("r.jsonl", "[1]", "r.jsonl:1: (not JSON|got a list)"),
        ("r.jsonl", '{"text": 3}', "'text' is 3; expected a text"),
        ("r.jsonl", '{"text": "a", "id": 1.5}', "the id is 1.5"),
        ("r.jsonl", '{"text": "a", "id": null}', "the id is None"),
        ("r.jsonl", '{"words": "a"}', "no column of texts, such as .*; it has words"),
        ("r.jsonl", '{"text": ["a", "b"]}', "expected a text."),
        ("r.jsonl", '{"id": 1, "text": "a"}\n{"id": 1, "text": "b"}', "two rows have the id '1'"),
        (
            "r.jsonl",
            r'{"text": "a\ud800b"}',
            r"r.jsonl:1: not JSON \(\\ud800 is half of a surrogate pair, no character",
        ),
        ("r.jsonl", b"\x1f\x8b\x08\0", "r.jsonl: a gzip file by its first bytes"),
        ("r.txt", b"\x1f\x8b\x08\0", r"a gzip file by its first bytes\. Decompress it first"),
        ("r.csv", b"PK\x03\x04\0\0", "r.csv: a ZIP file by its first bytes"),
        ("r.tsv", b"\x28\xb5\x2f\xfd\0", "r.tsv: a Zstandard file by its first bytes"),
        ("r.parquet", b"\x1f\x8b\x08\0", "r.parquet: a gzip file by its first bytes"),
        ("r.csv", "text,text\na,b\n", "expected each named once"),
        ("r.csv", "id,text\n1\n", "1 cells, expected 2"),
        ("r.txt", b"\xff\xfe", "not UTF-8"),
        ("r.csv", b"text\n\xff\n", "not UTF-8"),
        ("r.parquet", b"PAR1nonsense", "not a readable Parquet file"),
        ("r.docx", b"PK", "no file to search in; expected files that end in"),
    ],
)
def test_one_clear_line_for_what_cannot_be_read(tmp_path, name, content, says):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=says) as raised:
        read(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_a_cell_may_be_long(tmp_path, ending):
    text = "words " * 50_000
    (tmp_path / f"r.{ending}").write_text(f"text\n{text}\nshort\n")
    found = [row.values["text"] for row in table_rows(tmp_path / f"r.{ending}")]
    assert found == [text, "short"]


def test_reading_streams(tmp_path):
    # The second row is broken: the first comes before anybody knows.
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps({"text": "first"}) + "\nbroken")
    assert next(iter(read_passages(Source(str(path))))).text == "first"


def test_a_link_in_a_circle_gets_one_line(tmp_path):
    (tmp_path / "a.txt").write_text("lamp")
    (tmp_path / "loop.txt").symlink_to(tmp_path / "loop.txt")
    (tmp_path / "inner").symlink_to(tmp_path)
    with pytest.raises(UserError, match=r"loop.txt: a link to nothing"):
        list(read_passages(Source(str(tmp_path))))
    (tmp_path / "loop.txt").unlink()
    assert [p.id for p in read_passages(Source(str(tmp_path)))] == ["a.txt"]
