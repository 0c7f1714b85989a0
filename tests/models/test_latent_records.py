"""Answers with `<latent/>` and pictures as vectors: what is read, and what is refused by name."""

import numpy as np
import pytest
import torch

from burnish.errors import ArgumentError
from burnish.models.visual_latent import (
    PatchEncoder,
    RejectedResponse,
    answer_of,
    parse_response,
    read_picture,
)
from burnish.png import data_uri, png_bytes

GOOD = "Turn it. <latent/> <parser>Red is left.</parser> So it is <answer> red </answer>"


def test_an_answer_is_cut_at_its_spans():
    found = parse_response(GOOD, 1)
    assert found.pieces == (
        "Turn it. ",
        " <parser>Red is left.</parser> So it is <answer> red </answer>",
    )
    assert (found.spans, found.notes, found.answer) == (1, ("Red is left.",), "red")
    assert found.plain == "Turn it. So it is <answer> red </answer>"
    assert parse_response("It is <answer>3</answer>", 0).spans == 0
    assert answer_of("a <answer>1</answer> b <answer> 2</answer>") == "2"
    assert answer_of("no answer") is None


@pytest.mark.parametrize(
    ("text", "pictures", "reason"),
    [
        ("", 0, "no text"),
        (GOOD, 2, "1 spans for 2"),
        ("a <latent> b </latent> <answer>1</answer>", 1, "<latent> in the place of <latent/>"),
        ("a <latent> <answer>1</answer>", 1, "<latent> in the place"),
        ("a <latent/> <answer>1</answer>", 1, "without a <parser> note"),
        ("a <latent/> <parser> </parser> <answer>1</answer>", 1, "without a <parser> note"),
        ("a <latent/> b <parser>c</parser> <answer>1</answer>", 1, "without a <parser> note"),
        ("a <latent/> <parser>c <answer>1</answer>", 1, "tags that do not match"),
        ("a <latent/> <parser>c</parser> 1", 1, "no <answer>"),
        ("<answer>1</answer> <answer>2</answer>", 0, "more than one"),
        ("<answer>1", 0, "<answer> without its end"),
        ("1</answer>", 0, "tags that do not match"),
        ("<parser>a <latent/></parser> <answer>1</answer>", 1, "inside <parser>"),
    ],
)
def test_answers_that_cannot_be_learned_are_refused_with_a_reason(text, pictures, reason):
    with pytest.raises(RejectedResponse, match=reason):
        parse_response(text, pictures)


def test_notes_may_be_optional():
    text = "a <latent/> b <answer>c</answer>"
    found = parse_response(text, 1, needs_note=False)
    assert (found.notes, found.answer, found.plain) == (("",), "c", "a b <answer>c</answer>")


def drawn(rows, columns, seed=0, patch=4):
    draw = torch.Generator().manual_seed(seed)
    cells = torch.randint(256, (rows, columns, 3), generator=draw, dtype=torch.uint8)
    return cells, cells.repeat_interleave(patch, 0).repeat_interleave(patch, 1)


@pytest.mark.parametrize("kind", ["uint16", "uint32", "uint64", "int8", "bool"])
def test_pixels_of_any_whole_type(kind):
    pixels = np.ones((2, 3, 3), kind)
    assert torch.equal(read_picture(pixels), torch.ones(2, 3, 3, dtype=torch.uint8))
    if kind.startswith("uint"):
        with pytest.raises(ArgumentError, match="0 to 255"):
            read_picture(pixels * 256)


def test_paths_of_records_do_not_leave_their_folder(tmp_path):
    pytest.importorskip("PIL")
    _, pixels = drawn(2, 2)
    inside = tmp_path / "data"
    inside.mkdir()
    (tmp_path / "a.png").write_bytes(png_bytes(pixels.tolist()))
    (inside / "link.png").symlink_to(tmp_path / "a.png")
    for path in ("../a.png", str(tmp_path / "a.png"), "link.png", "a\0.png"):
        with pytest.raises(ArgumentError, match="cannot be read"):
            read_picture(path, inside)
    assert torch.equal(read_picture(tmp_path / "a.png"), pixels)


def test_a_picture_survives_its_text_form_bit_for_bit(tmp_path):
    pytest.importorskip("PIL")
    _, pixels = drawn(2, 3)
    assert torch.equal(read_picture(data_uri(pixels.tolist())), pixels)
    (tmp_path / "a.png").write_bytes(png_bytes(pixels.tolist()))
    assert torch.equal(read_picture("a.png", tmp_path), pixels)
    assert torch.equal(read_picture(pixels.tolist()), pixels)
    for wrong in ("data:image/png;base64,!!", "gone.png", b"no picture"):
        with pytest.raises(ArgumentError, match="cannot be read"):
            read_picture(wrong, tmp_path)
    with pytest.raises(ArgumentError, match="expected"):
        read_picture([[1, 2], [3, 4]])


@pytest.mark.parametrize("size", [24, 80])
def test_patches_become_vectors_of_the_asked_length_and_back(size):
    encoder = PatchEncoder(size, 4, scale=3.0, seed=7)
    cells, pixels = drawn(3, 5)
    vectors = encoder(pixels)
    assert vectors.shape == (3, 5, size)
    assert vectors.norm(dim=-1).mean().item() == pytest.approx(3.0, rel=0.25)
    assert torch.equal(vectors, PatchEncoder(size, 4, scale=3.0, seed=7)(pixels))
    back = encoder.decode(vectors.flatten(0, 1), (3, 5), (3, 5))
    assert (back.int() - cells.int()).abs().max() <= 1
    # The same colour at another place is another vector.
    flat = encoder(torch.zeros(8, 8, 3, dtype=torch.uint8))
    assert not torch.allclose(flat[0, 0], flat[1, 1], atol=0.1)


def test_pooled_vectors_show_mean_colours():
    from burnish.models.visual_latent import pool_tokens

    encoder = PatchEncoder(64, 4, scale=2.0)
    cells, pixels = drawn(4, 4)
    pooled = pool_tokens(encoder(pixels).flatten(0, 1), (4, 4), 4)
    back = encoder.decode(pooled, (4, 4), (2, 2)).float()
    wanted = cells.float().view(2, 2, 2, 2, 3).mean((1, 3))
    assert (back - wanted).abs().max() <= 1.5
