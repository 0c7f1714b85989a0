"""An index on disk: bm25s' numbers, exact best passages, a source that changes, hostile files."""

from __future__ import annotations

import json
import math
import os
from itertools import pairwise

import bm25s
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from search_cases import ROWS, WordEncoder, write_rows

from burnish.errors import StoreError, UserError
from burnish.tools.search import (
    Passage,
    PassageIndex,
    Retriever,
    SearchIndex,
    bm25 as bm25_module,
    bm25 as dense_module,
    open_index,
    reciprocal_rank_fusion,
    tokens,
    write_index,
)
from burnish.tools.search.bm25 import build_postings, top
from burnish.tools.search.index import _locked


@pytest.fixture
def source(tmp_path):
    return write_rows(tmp_path / "rows.jsonl")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "index"


def ids(found) -> list[str]:
    return [passage.id for passage in found]


# --- BM25


def postings_of(texts: list[str]):
    vocabulary: dict[str, int] = {}
    words = [[vocabulary.setdefault(w, len(vocabulary)) for w in tokens(text)] for text in texts]
    flat = np.array([w for one in words for w in one], np.int32)
    lengths = np.array([len(one) for one in words], np.int32)
    return build_postings(flat, lengths, words=len(vocabulary)), vocabulary


def test_a_score_by_hand():
    # Two passages of 1 and 3 words, mean 2; "a" stands once in the first and twice in the second.
    postings, vocabulary = postings_of(["a", "a a b"])
    rare = math.log(1 + 0.5 / 2.5)
    first = rare * 1 / (1 + 1.5 * (0.25 + 0.75 * 1 / 2))
    second = rare * 2 / (2 + 1.5 * (0.25 + 0.75 * 3 / 2))
    found = postings.best([vocabulary["a"]], 5)
    assert dict(zip(found.places.tolist(), found.scores.tolist(), strict=True)) == pytest.approx(
        {0: first, 1: second}, rel=1e-6
    )


def test_bm25s_opens_the_index_and_gives_the_same_scores(source, folder):
    index = open_index(source, folder=folder)
    theirs = bm25s.BM25.load(str(index.folder))
    query = ["lamp", "batteries", "has"]
    scores = theirs.get_scores(query)
    found = index.places(" ".join(query), 4)
    np.testing.assert_allclose(scores[found.places], found.scores, rtol=1e-6)
    own = bm25s.BM25()
    own.index(
        ([[index.vocabulary[w] for w in tokens(f"{r['title']} {r['text']}")] for r in ROWS],
         index.vocabulary),
        show_progress=False,
    )  # fmt: skip
    for name in ("indices", "indptr"):
        np.testing.assert_array_equal(own.scores[name], theirs.scores[name])
    np.testing.assert_allclose(own.scores["data"], theirs.scores["data"], rtol=1e-6)


WORDS = st.sampled_from(
    ["the", "the", "the", "the", "of", "of", "lamp", "cat", "dog", "sun", "moon", "x", "y", "z"]
)
TEXTS = st.lists(st.lists(WORDS, max_size=12).map(" ".join), min_size=1, max_size=40)


@settings(max_examples=150, deadline=None)
@given(TEXTS, st.lists(WORDS, min_size=1, max_size=5), st.integers(1, 6), st.integers(1, 40))
def test_the_best_are_those_of_adding_everything_up(texts, query, limit, chunk):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bm25_module, "CHUNK", chunk)
        postings, vocabulary = postings_of(texts)
    words = [vocabulary[w] for w in dict.fromkeys(query) if w in vocabulary]
    sums = np.zeros(len(texts), np.float32)
    for word in sorted(words, key=lambda w: (-postings.bounds[w], w)):
        begin, end = postings.starts[word], postings.starts[word + 1]
        sums[postings.places[begin:end]] += postings.scores[begin:end]
    matching = np.flatnonzero(sums)
    expected = top(matching, sums[matching], limit)
    found = postings.best(words, limit)
    assert found.places.tolist() == expected.places.tolist()
    assert found.scores.tolist() == expected.scores.tolist()
    # Best first, and of equal scores the earlier place.
    pairs = list(zip((-found.scores).tolist(), found.places.tolist(), strict=True))
    assert pairs == sorted(pairs)


def test_common_words_are_not_read_to_the_end(monkeypatch):
    texts = [f"the of word{n}" for n in range(500)] + ["the rare rare rare"]
    postings, vocabulary = postings_of(texts)
    finished = []
    finish = type(postings)._finish
    monkeypatch.setattr(
        type(postings), "_finish", lambda *given: finished.append(1) or finish(*given)
    )
    found = postings.best([vocabulary["the"], vocabulary["rare"]], 1)
    assert (found.places.tolist(), finished) == ([500], [1])


@settings(max_examples=50, deadline=None)
@given(TEXTS, st.lists(WORDS, min_size=1, max_size=4).map(" ".join))
def test_on_disk_and_in_memory_rank_alike(tmp_path_factory, texts, query):
    passages = [Passage(str(n), text) for n, text in enumerate(texts)]
    place = tmp_path_factory.mktemp("index") / "g"
    index = SearchIndex(write_index(passages, place))
    memory = PassageIndex(passages)
    found = index.find(query, 50)
    assert {hit.passage.id for hit in found} == set(ids(memory.search(query, 50)))
    # Scores have 32 bits on disk: passages that are equal to 6 digits may change places.
    ranks = {id_: rank for rank, id_ in enumerate(ids(memory.search(query, 50)))}
    for one, two in pairwise(found):
        assert one.score - two.score < 1e-5 or ranks[one.passage.id] < ranks[two.passage.id]


# --- an index folder


def test_words_in_english_and_chinese(source, folder):
    index = open_index(source, folder=folder)
    assert isinstance(index, Retriever)
    assert (len(index), index[0]) == (4, Passage("lamp", ROWS[0]["text"], "Lamp"))
    assert ids(index.search("LAMP batteries")) == ["lamp", "kettle"]
    assert ids(index.search("壶")) == ["chinese"]
    assert index.search("violin") == index.search("") == index.search("?!") == []
    assert index.search("lamp", 0) == index.search("lamp", -1) == []


def test_an_unchanged_source_is_not_read_again(source, folder, monkeypatch):
    first = open_index(source, folder=folder)
    monkeypatch.setattr("burnish.tools.search.index.read_passages", None)
    assert open_index(source, folder=folder).folder == first.folder
    os.utime(source)  # touched, with the same contents
    assert open_index(source, folder=folder).folder == first.folder


def test_a_changed_source_is_seen_also_at_the_same_size(source, folder):
    old = open_index(source, folder=folder)
    facts = source.stat()
    source.write_text(source.read_text().replace("aerial", "AERIAl".lower()[::-1]))
    os.utime(source, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    new = open_index(source, folder=folder)
    assert source.stat().st_size == facts.st_size
    assert (new.search("aerial"), ids(new.search("laerai"[:0] + "lairea"))) == ([], ["radio"])
    assert ids(old.search("aerial")) == ["radio"]  # an open index goes on
    assert len(list(folder.glob("g-*"))) == 1


def test_other_settings_are_another_index(source, folder):
    from burnish.tools.search import Source

    plain = open_index(source, folder=folder)
    swapped = open_index(Source(str(source), text="title", title="text"), folder=folder)
    assert plain.folder != swapped.folder
    assert swapped[0].text == "Lamp"


def test_a_folder_of_something_else_is_left_alone(source, folder):
    folder.mkdir()
    (folder / "thesis.tex").write_text("x")
    open_index(source, folder=folder)
    assert (folder / "thesis.tex").read_text() == "x"
    with pytest.raises(UserError, match="is a file"):
        open_index(source, folder=folder / "thesis.tex")


@pytest.mark.parametrize("name", ["g-photos", "g-0123456789abcdef"])
def test_a_folder_of_yours_that_looks_like_ours_is_never_removed(source, folder, name):
    open_index(source, folder=folder)
    own = folder / name / "holiday.jpg"
    own.parent.mkdir()
    own.write_text("x")
    source.write_text(source.read_text().replace("aerial", "antenna"))
    open_index(source, folder=folder)
    assert own.is_file()


def test_nothing_on_disk_is_pickled(source, folder):
    open_index(source, folder=folder, how="dense", encoder=WordEncoder())
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= {".npy", ".json", ".jsonl", ""}
    for path in files:
        if path.suffix == ".npy":
            assert not np.load(path, allow_pickle=False).dtype.hasobject


def test_a_killed_build_leaves_nothing_that_counts(source, folder, monkeypatch):
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("burnish.tools.search.index.write_postings", killed)
        with pytest.raises(KeyboardInterrupt):
            open_index(source, folder=folder)
    assert list(folder.glob("g-*")) == []
    (folder / ".writing-g-old-1").mkdir()  # what kill -9 leaves
    assert ids(open_index(source, folder=folder).search("radio")) == ["radio"]
    assert not (folder / ".writing-g-old-1").exists()


def test_another_builder_is_waited_for(source, folder):
    folder.mkdir()
    with _locked(folder), pytest.raises(StoreError, match="being built by"), _locked(folder, 0):
        pass


# --- dense and hybrid


def test_dense_and_hybrid(source, folder):
    index = open_index(source, folder=folder, how="dense", encoder=WordEncoder())
    assert index.search("radio aerial")[0].id == "radio"
    assert len(index.search("radio", 10)) == 4  # every passage has a nearness
    assert index.search("?!") == []
    by_words, by_vectors = (index.places("lamp batteries", 100, how) for how in ("bm25", "dense"))
    expected = reciprocal_rank_fusion([by_words.places.tolist(), by_vectors.places.tolist()])
    hybrid = index.find("lamp batteries", 3, "hybrid")
    assert [hit.passage for hit in hybrid] == [index[place] for place, _ in expected[:3]]
    assert [hit.score for hit in hybrid] == pytest.approx([s for _, s in expected[:3]])


def test_equal_vectors_stand_in_the_order_of_the_source(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(dense_module, "ROWS", 7)
    rows = [{"id": str(n), "text": "same words"} for n in range(40)]
    source = write_rows(tmp_path / "r.jsonl", rows)
    index = open_index(source, folder=folder, how="dense", encoder=WordEncoder())
    assert ids(index.search("same", 20)) == [str(n) for n in range(20)]


def test_a_stopped_encoding_goes_on_with_the_same_bits(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(dense_module, "BLOCK", 8)
    rows = [{"id": str(n), "text": f"word{n} and {n % 7}"} for n in range(50)]
    source = write_rows(tmp_path / "r.jsonl", rows)
    whole = open_index(source, folder=tmp_path / "whole", how="dense", encoder=WordEncoder())
    with pytest.raises(KeyboardInterrupt):
        open_index(source, folder=folder, how="dense", encoder=WordEncoder(stop_after=24))
    again = WordEncoder()
    index = open_index(source, folder=folder, how="dense", encoder=again)
    assert again.texts == 50 - 24
    np.testing.assert_array_equal(index._vectors.vectors_ND, whole._vectors.vectors_ND)


def test_another_encoder_has_its_own_vectors(source, folder):
    open_index(source, folder=folder, how="dense", encoder=WordEncoder())
    other = WordEncoder(fingerprint="other")
    open_index(source, folder=folder, how="dense", encoder=other)
    assert other.texts == 4


def test_rank_fusion_by_hand():
    joined = dict(reciprocal_rank_fusion([["a", "b"], ["b", "c"]], constant=1))
    assert joined == pytest.approx({"b": 1 / 3 + 1 / 2, "a": 1 / 2, "c": 1 / 3})
    assert [key for key, _ in reciprocal_rank_fusion([[2], [1]])] == [1, 2]
    assert reciprocal_rank_fusion([]) == []


# --- what a build tells


def test_passages_come_back_as_they_were_written(tmp_path):
    odd = [Passage("a\n", 'x"\u2028\x00 <|im_end|>', "t"), Passage("b", "y" * 5000)]
    index = SearchIndex(write_index(odd, tmp_path / "i"))
    assert [index[0], index[1]] == odd
    lines = (tmp_path / "i" / "passages.jsonl").read_bytes().split(b"\n")
    assert json.loads(lines[1])["id"] == "b"
    with pytest.raises(UserError, match="something already"):
        write_index(odd, tmp_path / "i")
    with pytest.raises(UserError, match="no text to search in"):
        write_index([], tmp_path / "none")
