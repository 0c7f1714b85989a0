"""What an answer imagined, on the page of a sample; anything that is no small PNG is not shown."""

import pytest

from burnish.png import data_uri
from burnish.records import Author, Message, Reward, Span, Task, Trajectory
from burnish.store import RunStore, StoredSample
from burnish.view.pages.latents import latents_view
from burnish.view.pages.sample_page import sample_page

RED, BLUE = (data_uri([[colour]]) for colour in ((255, 0, 0), (0, 0, 255)))
SPAN = {
    "slots": 4, "clipped": 2, "norm": 1.5, "target_norm": 3.0, "note": "red is left",
    "picture": RED, "target": BLUE,
}  # fmt: skip


def stored(latents, image=BLUE):
    span = Span(Author.MODEL, (7, 2), (-0.1, -0.3), trainable=True)
    task = Task("t", (Message("user", "Which?"),), {"image": image})
    info = {"latents": latents, "other": 1} if latents is not None else {}
    trajectory = Trajectory("0.0.0", "t", "0.0", (span,), "a <latent/> b", info=info)
    return StoredSample(
        step=0, split="train", index=0, task=task, trajectory=trajectory,
        reward=Reward("answer", 1.0),
    )  # fmt: skip


def test_the_page_of_a_sample_has_the_imagined_and_the_true_picture(tmp_path):
    with RunStore.create(tmp_path / "run", {"steps": 1}, {}, recipe="gap") as store:
        store.append_rollouts(0, [stored([SPAN, {**SPAN, "picture": "", "norm": None}])])
        store.finish("finished")
    page = sample_page(tmp_path / "run", "train-1-1-1", 0)
    found = page["latents"]
    assert found is not None
    first, second = found["spans"]
    assert (first["picture"], first["target"], first["ratio"], first["note"]) == (
        RED, BLUE, 0.5, "red is left",
    )  # fmt: skip
    assert (second["picture"], second["ratio"]) == ("", None)
    assert (found["question"], found["clipped"], found["more"]) == (BLUE, 2, 0)
    assert page["info"] == {"other": 1}  # shown once, as pictures


@pytest.mark.parametrize(
    "picture",
    [
        "https://example.org/a.png", "data:image/svg+xml;base64,PHN2Zy8+", "javascript:alert(1)",
        RED + "A" * 300_000, 7, None,
    ],
)  # fmt: skip
def test_only_small_png_texts_are_pictures(picture):
    found = latents_view(stored([{**SPAN, "picture": picture}], image=picture))
    assert found is not None
    assert (found["spans"][0]["picture"], found["question"]) == ("", "")


@pytest.mark.parametrize("latents", [None, [], "x", {"a": 1}])
def test_other_answers_have_none(latents):
    assert latents_view(stored(latents)) is None
