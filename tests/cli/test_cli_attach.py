"""`burnish generate`, `chat`, `eval` and `try` with images, and a tiny model that reads them."""

import io
import json
import sys

import pytest
from lab.tiny_media import tiny_media_model

Image = pytest.importorskip("PIL.Image", reason="images need pillow")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_media_model(tmp_path_factory.mktemp("vlm"), "llava")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    for name, colour in (("red", (200, 10, 10)), ("blue", (10, 10, 200))):
        Image.new("RGB", (40, 30), colour).save(tmp_path / f"{name}.png")
    return tmp_path


def test_generate_shows_an_image_with_every_prompt(typed, here, model):
    words = ("generate", model, "What is it?", "--max-tokens", 4)
    red, blue, none = (
        typed(*words, *more) for more in (("--attach", "red.png"), ("--attach", "blue.png"), ())
    )
    assert (red.code, blue.code, none.code) == (0, 0, 0)
    rows = [json.loads(one.out) for one in (red, blue, none)]
    assert rows[0]["prompt"].startswith("[image ")
    assert rows[0]["prompt"].endswith("]What is it?")
    assert len({row["response"] for row in rows}) > 1


def test_chat_attaches_to_the_next_message(typed, here, model, monkeypatch):
    lines = "/attach blue.png\nWhat?\nAnd?\n/save talk.jsonl\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    done = typed("chat", model, "--max-tokens", 3, "--attach", "red.png", "--json")
    assert done.code == 0
    saved = json.loads((here / "talk.jsonl").read_text())["messages"]
    assert [part["type"] for part in saved[0]["content"]] == ["image", "image", "text"]
    assert saved[2]["content"] == "And?"
    # What was saved is what a file of tasks may hold.
    again = typed("generate", model, "--file", "talk.jsonl", "--max-tokens", 2)
    assert again.code == 0, again.err


def test_eval_and_try_read_tasks_with_images(typed, here, model):
    rows = [
        {"question": f"{i}?", "picture": f"{name}.png"} for i, name in enumerate(("red", "blue"))
    ]
    (here / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (here / "run.toml").write_text(
        f'''
steps = 1
[model]
path = "{model}"
[task]
kind = "file"
path = "rows.jsonl"
prompt = "question"
images = "picture"
[[rewards]]
kind = "length"
unit = "characters"
min = 4
edge = 4
[rollout]
prompts = 1
samples = 2
max_tokens = 3
'''
    )
    done = typed("eval", model, "run.toml", "--json")
    assert done.code == 0, done.err
    tried = typed("try", "run.toml")
    assert tried.code == 0, tried.err
    assert "<image><image>" in "".join(tried.out.split())
