import itertools

import torch
from hypothesis import given, strategies as st
from training_cases import rollout

from burnish.lm import load_model
from burnish.training.weighing import Segmenter, pad_segments

HEADINGS = ("rule:", "why:")


class Pieces:
    """A tokenizer whose tokens are the given bytes; like a real one it drops a leading blank."""

    def __init__(self, *pieces):
        self.pieces = [p if isinstance(p, bytes) else p.encode() for p in pieces]

    def decode(self, ids):
        return b"".join(self.pieces[i] for i in ids).decode(errors="replace").removeprefix(" ")

    def number(self, headings=HEADINGS):
        return Segmenter(self, headings).number(range(len(self.pieces)))


def test_the_first_token_then_the_sections():
    found = Pieces("3", "\n", "rule:", " size", "\n", "why:", " too", " big", "").number()
    assert found == [0, -1, 1, 1, 1, 2, 2, 2, 2]


def test_a_token_that_straddles_a_border_begins_the_heading():
    assert Pieces("3", "\nru", "le: a", ".\nwhy", ": b").number() == [0, 1, 1, 2, 2]
    assert Pieces("3", "\nrule: a\nwhy:", " b").number() == [0, 2, 2]


def test_the_first_token_is_the_answer_even_where_it_writes_a_heading():
    assert Pieces("rule:", " a").number() == [0, 1]


def test_headings_stand_at_the_start_of_a_line():
    assert Pieces("3", " rule: no\n", "the why: no").number() == [0, -1, -1]
    assert Pieces("3", "\n", "  ", "rule:", " a").number() == [0, -1, -1, 1, 1]
    assert Pieces("3", "\n", "Rule:", " a").number() == [0, -1, -1, -1]


def test_missing_swapped_and_repeated_headings():
    assert Pieces("3", "\n", "why:", " a").number() == [0, -1, 2, 2]
    assert Pieces("3", "\n", "why:", " a\n", "rule:", " b").number() == [0, -1, 2, 2, 1, 1]
    assert Pieces("3", "\n", "rule:", " a\n", "rule:", " b").number() == [0, -1, 1, 1, -1, -1]
    assert Pieces("3", " and", " prose", "").number() == [0, -1, -1, -1]
    assert Pieces("3", "\n", "rule:", " a").number(()) == [0, 0, 0, 0]  # all one section
    assert Segmenter(Pieces(), HEADINGS).number([]) == []


def test_tags_end_where_they_are_closed():
    pieces = Pieces("3", " <rule>", "a", "</rule>", " so", " <why>", "b", "")
    assert pieces.number(("<rule>", "<why>")) == [0, 1, 1, 1, -1, 2, 2, 2]


def test_the_longer_of_two_headings_counts():
    assert Pieces("3\n", "rule: id", " 4").number(("rule:", "rule: id")) == [0, 2, 2]


def test_bytes_that_decode_only_together():
    euro = "€".encode()
    found = Pieces("3", "\n", "rule:", euro[:1], euro[1:2], euro[2:], "\n", "why:", " b").number()
    assert found == [0, -1, 1, 1, 1, 1, 1, 2, 2]
    # The last byte of a character and the next heading in one token.
    found = Pieces("3", "\nrule:", euro[:2], euro[2:] + b"\nwhy:", " b").number()
    assert found == [0, 1, 2, 2, 2]


def test_bytes_that_never_decode():
    broken = Pieces(
        "3", b"\xe2", b"\x82", "\n", "rule:", *[b"\xff"] * 20, "\n", "why:", "a", b"\xe2"
    )
    assert broken.number() == [0, -1, -1, -1, *[1] * 22, 2, 2, 2]


words = st.sampled_from(["rule:", "why:", "\n", " ", "a", "é", "€", "3", "rule", ":", "🙂"])


@given(st.lists(words, min_size=1, max_size=12), st.data())
def test_every_cut_of_a_text_gives_its_text_back_and_ordered_ranges(parts, data):
    text = "x" + "".join(parts)
    content = text.encode()
    places = data.draw(
        st.sets(st.integers(1, len(content) - 1)) if len(content) > 1 else st.just(set())
    )
    borders = [0, *sorted(places), len(content)]
    pieces = Pieces(*(content[a:b] for a, b in itertools.pairwise(borders)))
    ids = range(len(pieces.pieces))
    cut = Segmenter(pieces, HEADINGS).cut(ids)
    assert cut.text == text
    assert [start for start, _ in cut.ranges] == sorted(start for start, _ in cut.ranges)
    assert (cut.ranges[0][0], cut.ranges[-1][1]) == (0, len(text))
    numbers = pieces.number()
    assert len(numbers) == len(pieces.pieces)
    assert numbers[0] == 0
    # One token a byte is the finest cut: a coarser one knows no section that it does not.
    finest = Pieces(*(bytes([byte]) for byte in content)).number()
    assert set(numbers[1:]) - {-1} <= set(finest)


def test_a_real_tokenizer_and_rollouts_of_different_lengths():
    tokenizer = load_model("tiny", device="cpu").tokenizer
    end = tokenizer.eos_ids[0]
    segment = Segmenter(tokenizer, HEADINGS)
    texts = ["2\nrule: é\nwhy: x", "2"]
    made = [
        rollout(str(i), "g", tokenizer.encode("rule: in the prompt"), [*tokenizer.encode(t), end])
        for i, t in enumerate(texts)
    ]
    long, short = (segment(one) for one in made)
    assert long == [0, -1, *[1] * len("rule: é\n".encode()), *[2] * len("why: x"), 2]
    assert short == [0, -1]
    assert [len(long), len(short)] == [one.trained_tokens for one in made]
    padded = pad_segments([long, short])
    assert padded.dtype == torch.int64
    assert padded.tolist() == [long, [0, -1, *[-1] * (len(long) - 2)]]
    assert pad_segments([]).shape == (0, 0)
