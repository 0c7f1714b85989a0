"""Scenes and charts: bytes, facts, answers, sides, settings."""

import hashlib
import io
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from burnish.records import ImagePart, TextPart
from burnish.store.blobs import shared_blobs
from burnish.tasks import Chart, Charts, PictureTasks, Scene, Scenes, Thing
from burnish.tasks.pictures import PALETTE, indexed_png

KINDS: list[Any] = [Scenes(), Scenes(layout="scattered"), Charts()]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))


def opened(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def test_the_same_bytes_on_every_machine():
    scene = Scene((Thing("red", "circle", 1, 1), Thing("blue", "cross", 3, 2)), 96, 3)
    loose = Scene((Thing("green", "triangle", 30, 30), Thing("black", "square", 70, 60)), 96, 0)
    bar = Chart("bar", ("A", "K"), (3, 10), ("red", "purple"), 96)
    line = Chart("line", ("X", "B", "C"), (1, 9, 4), ("yellow", "black", "green"), 128)
    found = [hashlib.sha256(one.png()).hexdigest()[:16] for one in (scene, loose, bar, line)]
    assert found == HASHES


def test_png_of_palette_colours():
    colours = list(PALETTE.values())
    rng = random.Random(0)
    pixels = bytes(rng.randrange(len(colours)) for _ in range(600 * 600))
    data = indexed_png(pixels, 600, colours)
    wanted = np.array(colours, dtype=np.uint8)[np.frombuffer(pixels, np.uint8)].reshape(600, 600, 3)
    assert np.array_equal(opened(data), wanted)


@pytest.mark.parametrize("config", KINDS)
def test_tasks(config):
    tasks = config.build(7, Path())
    assert isinstance(tasks, PictureTasks)
    for index in range(10):
        task = tasks.train(index)
        part, text = task.messages[0].content
        assert isinstance(part, ImagePart)
        assert isinstance(text, TextPart)
        assert shared_blobs().read(part) == tasks.picture(index).png()
        assert text.text == f"{task.fields['question']} Answer briefly."
        assert set(task.fields) == tasks.fields
        assert not {"answer", "facts", "description"} & set(task.for_judge().fields)
        assert tasks.train(index) == task
    kinds = [tasks.train(index).fields["asked"] for index in range(5)]
    assert kinds == list(config.questions)


@pytest.mark.parametrize("config", KINDS)
def test_sides_never_meet(config):
    tasks = config.build(1, Path())
    held = {tasks.picture(n, held_out=True).key for n in range(60)}
    seen = {tasks.picture(n).key for n in range(200)}
    assert not held & seen
    assert config.build(2, Path()).held_out(5) == tasks.held_out(5) == tasks.held_out(9)[:5]
    assert config.build(2, Path()).train(0) != tasks.train(0)
    assert config.build(2, Path()).fingerprint == tasks.fingerprint


def test_scenes_by_their_pixels():
    """Each thing covers the middle of its place, and nothing else has its colour."""
    for config in (Scenes(), Scenes(layout="scattered")):
        for seed in range(30):
            scene = config.draw(random.Random(seed))
            assert isinstance(scene, Scene)
            pixels, cell = opened(scene.png()), scene.size // (scene.grid or 1)
            for one in scene.things:
                x = (one.x - 1) * cell + cell // 2 if scene.grid else one.x
                y = (one.y - 1) * cell + cell // 2 if scene.grid else one.y
                assert tuple(pixels[y, x]) == PALETTE[one.colour]
            shown = {tuple(colour) for colour in pixels.reshape(-1, 3)}
            assert shown == {PALETTE[one.colour] for one in scene.things} | {
                PALETTE["white"],
                *([PALETTE["grey"]] if scene.grid else []),
            }


def test_answers_about_a_scene():
    scene = Scene(
        (Thing("red", "circle", 1, 1), Thing("blue", "square", 4, 2), Thing("red", "cross", 2, 3)),
        224,
        4,
    )
    assert scene.description == (
        "3 things: a red circle in row 1, column 1, a blue square in row 2, column 4, "
        "a red cross in row 3, column 2."
    )
    assert "there is 1 red circle" in scene.facts
    assert "there are 3 things" in scene.facts
    truth = {
        "How many circles are there?": "1", "How many crosses are there?": "1",
        "How many red things are there?": "2", "How many yellow things are there?": "0",
        "How many things are there?": "3", "What colour is the square?": "blue",
        "What shape is blue?": "square", "What is in row 2, column 4?": "blue square",
        "What is in row 4, column 4?": "nothing",
        "Is the red circle left of the blue square?": "yes",
        "Is the red cross above the blue square?": "no",
        "Is the red cross below the blue square?": "yes",
    }  # fmt: skip
    rng = random.Random(0)
    found = {}
    for _ in range(3000):
        for kind in ("count", "colour", "shape", "place", "relation"):
            if one := scene.ask(kind, rng):
                assert found.setdefault(one.question, one.answer) == one.answer
    assert {question: found[question] for question in truth} == truth


def test_answers_about_a_chart():
    chart = Chart("bar", ("K", "A", "P"), (4, 9, 2), ("red", "blue", "green"), 224)
    rng = random.Random(0)
    assert chart.description == "A bar chart: K is 4, A is 9, P is 2."
    truth = {
        "What is the value of K?": "4", "Which label has the largest value?": "A",
        "Which label has the smallest value?": "P", "Is K larger than A?": "no",
        "Is K larger than P?": "yes", "How many values does the chart have?": "3",
    }  # fmt: skip
    found = {}
    for _ in range(300):
        for kind in ("value", "largest", "smallest", "compare", "count"):
            one = chart.ask(kind, rng)
            assert one is not None
            assert found.setdefault(one.question, one.answer) == one.answer
    assert {question: found[question] for question in truth} == truth


@pytest.mark.parametrize(("config", "kind"), [(Scenes(), "relation"), (Charts(), "compare")])
def test_yes_is_as_frequent_as_no(config, kind):
    rng, counts = random.Random(0), Counter[str]()
    for _ in range(600):
        one = config.draw(rng).ask(kind, rng)
        counts[one.answer if one else "none"] += 1
    assert abs(counts["yes"] - counts["no"]) < 80


def test_bars_are_as_high_as_their_values():
    chart = Chart("bar", ("A", "B", "C"), (2, 5, 10), ("red", "blue", "green"), 224)
    pixels = opened(chart.png())
    tall = [
        int((pixels == np.array(PALETTE[colour])).all(-1).any(1).sum()) for colour in chart.colours
    ]
    assert tall[2] / tall[0] == pytest.approx(5, rel=0.05)
    assert tall[1] / tall[0] == pytest.approx(2.5, rel=0.05)


HASHES = ["5ede2b9d9063247c", "d395ac9b5654e821", "fab4b59a74ed9c8d", "e90cd1db6db87eb9"]
