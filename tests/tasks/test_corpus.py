"""Documents as a stream: every kind of file, faults in one line, bounded memory."""

import json
import random
import tracemalloc

import pytest

from burnish.errors import UserError
from burnish.tasks import corpus as corpus_module
from burnish.tasks.corpus import PIECE, Corpus


def documents(*sources, **settings):
    return list(Corpus(tuple(map(str, sources)), **settings).documents())


def write_parquet(path, **columns):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table(columns), path)
    return path


def test_every_kind_of_file_gives_its_documents(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo")
    (tmp_path / "b.jsonl").write_text('{"text": "three"}\n\n{"text": ""}\n{"text": "four"}\n')
    (tmp_path / "c.csv").write_text("id,content\n1,five\n")
    write_parquet(tmp_path / "d.parquet", n=[1, 2], body=["six", None])
    (tmp_path / "ignored.png").write_bytes(b"\0\0")
    assert documents(tmp_path) == ["one\r\ntwo", "three", "four", "five", "six"]
    assert documents(tmp_path / "b.jsonl", tmp_path / "a.txt") == ["three", "four", "one\r\ntwo"]
    write_parquet(tmp_path / "e.parquet", text=["no"], words=["yes"])
    assert documents(tmp_path / "e.parquet", column="words") == ["yes"]


def test_a_separator_cuts_a_text_wherever_blocks_end(tmp_path, monkeypatch):
    wanted = [f"document {n} é" * (1 + n % 3) for n in range(50)]
    (tmp_path / "a.txt").write_text("<|cut|>".join([*wanted, "", " "]))
    for block in (1, 5, 7, 1000):
        monkeypatch.setattr(corpus_module, "BLOCK", block)
        assert documents(tmp_path / "a.txt", separator="<|cut|>") == wanted


@pytest.mark.parametrize("piece", [4, 9, 64])
def test_pieces_joined_are_the_text(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(corpus_module, "PIECE", piece)
    monkeypatch.setattr(corpus_module, "BLOCK", 10)
    rng = random.Random(piece)
    wanted = ["".join(rng.choice("ab  \né") for _ in range(200)).strip() for _ in range(9)]
    (tmp_path / "a.txt").write_text("||".join(wanted))
    corpus = Corpus((str(tmp_path / "a.txt"),), separator="||")
    assert list(corpus.documents()) == wanted
    assert max(len(p.text) for p in corpus.pieces()) <= max(piece, 10) + piece + 2


def test_a_function_gives_texts(tmp_path):
    (tmp_path / "mine.py").write_text("def documents():\n    yield 'one'\n    yield 'two'\n")
    assert documents("mine.py:documents", root=tmp_path) == ["one", "two"]
    corpus = Corpus(("mine.py:documents",), root=tmp_path)
    before = corpus.digest
    (tmp_path / "mine.py").write_text("def documents():\n    yield 'other'\n")
    assert Corpus(("mine.py:documents",), root=tmp_path).digest != before


def test_the_digest_changes_with_contents_and_settings_and_not_with_the_place(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text("same")
    one, two = (Corpus((str(tmp_path / name),)).digest for name in ("one", "two"))
    assert one == two
    assert Corpus((str(tmp_path / "one"),), separator="a").digest != one
    (tmp_path / "two" / "a.txt").write_text("sama")
    assert Corpus((str(tmp_path / "two"),)).digest != one


FAULTS = {
    "a.txt": (b"fine\nb\0d", r"a.txt:2: holds a zero byte, so it is no text"),
    "b.txt": (b"fine\n\xff\xfe", r"b.txt:2: not UTF-8 \(byte 0xff\); save it as UTF-8"),
    "c.txt": ("é".encode()[:1], r"c.txt:1: not UTF-8"),
    "d.jsonl": (b'{"words": "x"}\n', r"no column of texts, such as text.*; it has words"),
    "e.jsonl": (
        b'{"text": "x"}\n{"other": 1}\n',
        r"e.jsonl:2: no column 'text'; every row needs it",
    ),
    "f.jsonl": (b'{"text": 3}\n', r"f.jsonl:1: 'text' is 3; expected a text"),
    "g.jsonl": (b'{"text": "a"\n', r"g.jsonl:1: not JSON"),
    "h.parquet": (b"PAR1", r"not a readable Parquet file"),
    "i.docx": (b"PK", r"no text; expected files that end in .txt"),
    "j.jsonl": (
        b'{"text": "\\ud800"}\n',
        r"j.jsonl:1: not JSON .\\ud800 is half of a surrogate pair",
    ),
    "k.jsonl": (
        b"\x1f\x8b\x08\0",
        r"k.jsonl: a gzip file by its first bytes.* Decompress it first",
    ),
    "l.txt": (b"\x1f\x8b\x08\0", r"l.txt: a gzip file by its first bytes"),
    "m.csv": (b"PK\x03\x04\0\0", r"m.csv: a ZIP file by its first bytes"),
    "n.parquet": (b"\x28\xb5\x2f\xfd", r"n.parquet: a Zstandard file by its first bytes"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_one_line(tmp_path, name):
    content, line = FAULTS[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=line) as error:
        documents(tmp_path / name)
    assert "\n" not in str(error.value)


def test_a_document_of_a_csv_file_may_be_longer_than_a_piece(tmp_path):
    text = "some words " * 30_000
    assert len(text) > PIECE
    (tmp_path / "a.csv").write_text(f'id,text\n1,"{text}"\n2,short\n')
    assert documents(tmp_path / "a.csv") == [text, "short"]


def test_separators_are_counted_wherever_blocks_end(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("||one||two||||three")
    (tmp_path / "b.jsonl").write_text('{"text": "four"}\n{"text": "five||six"}\n')
    (tmp_path / "mine.py").write_text("def documents():\n    yield 'seven||eight'\n")
    sources = [str(tmp_path / name) for name in ("a.txt", "b.jsonl", "mine.py:documents")]
    for block in (1, 3, 1000):
        monkeypatch.setattr(corpus_module, "BLOCK", block)
        found = []
        texts = list(Corpus(tuple(sources), separator="||").documents(found.append))
        assert texts == ["one", "two", "three", "four", "five", "six", "seven", "eight"]
        assert sum(found) == 6
    none = []
    assert list(Corpus((sources[1],), separator="|||").documents(none.append))
    assert not none


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("return 'text'", "returned str, expected texts"),
        ("yield 3", "'text' is 3; expected a text"),
        ("yield 'a'\n    raise ValueError('no')", "raised ValueError: no"),
    ],
)
def test_a_function_that_goes_wrong_is_named(tmp_path, code, line):
    (tmp_path / "mine.py").write_text(f"def documents():\n    {code}\n")
    with pytest.raises(UserError, match=line):
        documents("mine.py:documents", root=tmp_path)


def test_a_large_file_is_never_held(tmp_path):
    """40 MB of text in one document, and a line of 8 MB: the memory of a few pieces."""
    path = tmp_path / "large.txt"
    path.write_bytes(b"some words of a long text " * 1_600_000)
    tracemalloc.start()
    count = sum(len(piece.text) for piece in Corpus((str(path),)).pieces())
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == path.stat().st_size
    assert most < 12 * PIECE * 4


def test_one_long_line_is_read(tmp_path):
    text = "word " * 10_000_000  # 50 MB
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": text}) + "\n")
    pieces = list(Corpus((str(tmp_path / "a.jsonl"),)).pieces())
    assert "".join(piece.text for piece in pieces) == text
    assert max(len(piece.text) for piece in pieces) <= PIECE
    assert [piece.ends for piece in pieces] == [False] * (len(pieces) - 1) + [True]


def test_a_function_may_yield_none_for_a_text_that_is_missing(tmp_path):
    (tmp_path / "gaps.py").write_text("def documents():\n    yield from ('a', None, 'b')\n")
    assert list(Corpus((f"{tmp_path / 'gaps.py'}:documents",)).documents()) == ["a", "b"]
