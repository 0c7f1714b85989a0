"""Tasks with images and sounds: from every kind of file and value, never from an address."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

pytest.importorskip("PIL", reason="pillow is not installed")
pytest.importorskip("soundfile", reason="soundfile is not installed")

from PIL import Image

from burnish.errors import UserError
from burnish.media import encode_sound
from burnish.memory import keep_rows
from burnish.records import AudioPart, ImagePart, TextPart
from burnish.store.blobs import shared_blobs
from burnish.tasks.files import File, HeldOutShare
from burnish.tasks.function import Function
from burnish.tasks.media_columns import holds_media

DATA = Path(__file__).parents[2] / ".." / "shared" / "data"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))


def png(red):
    from io import BytesIO

    into = BytesIO()
    Image.new("RGB", (8, 8), (red, 0, 0)).save(into, "PNG")
    return into.getvalue()


def wav(value=0.5):
    return encode_sound([0.0, value, -value], 8000)


def data_address(data, kind="image/png"):
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def built(folder, rows, name="rows.jsonl", **settings):
    (folder / name).write_text("\n".join(map(json.dumps, rows)))
    file = File(path=name, held_out=HeldOutShare(share=0), **settings)
    return file.build(0, folder)


def contents(tasks):
    """The parts of each last message: texts as they are, media as their bytes."""
    blobs = shared_blobs()
    last = [task.messages[-1].content for task in tasks.train_tasks]
    return [
        [content]
        if isinstance(content, str)
        else [part.text if isinstance(part, TextPart) else blobs.read(part) for part in content]
        for content in last
    ]


def test_paths_data_addresses_structs_and_lists_in_one_column(tmp_path):
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.png").write_bytes(png(1))
    rows = [
        {"q": "one", "picture": "pictures/a.png"},
        {"q": "two", "picture": data_address(png(2))},
        {"q": "three", "picture": {"bytes": None, "path": "pictures/a.png"}},
        {"q": "four", "picture": [data_address(png(3)), "pictures/a.png"]},
        {"q": "five", "picture": None},
    ]
    tasks = built(tmp_path, rows, prompt="q", images="picture")
    assert contents(tasks) == [
        [png(1), "one"], [png(2), "two"], [png(1), "three"], [png(3), png(1), "four"], ["five"],
    ]  # fmt: skip


def test_parquet_with_bytes_and_structs(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    rows = [{"q": f"q{k}", "image": {"bytes": png(k), "path": None}, "raw": wav()} for k in (1, 2)]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    share = HeldOutShare(share=0)
    file = File(path="rows.parquet", prompt="q", images="image", audio="raw", held_out=share)
    assert contents(file.build(0, tmp_path)) == [[png(k), wav(), f"q{k}"] for k in (1, 2)]


def test_places_in_the_text_and_by_number(tmp_path):
    first, second = data_address(png(1)), data_address(png(2))
    rows = [
        {"q": "Is <image> or <image> larger, as <audio> says?", "i": [first, second]},
        {"q": "Is <image2> like <image1>, as <audio> says?", "i": [first, second]},
    ]
    for row in rows:
        row["s"] = data_address(wav(), "audio/wav")
    one, two = contents(built(tmp_path, rows, prompt="q", images="i", audio="s"))
    assert one == ["Is ", png(1), " or ", png(2), " larger, as ", wav(), " says?"]
    assert two == ["Is ", png(2), " like ", png(1), ", as ", wav(), " says?"]


def test_one_question_about_every_sound(tmp_path):
    rows = [{"s": data_address(wav(value), "audio/wav")} for value in (0.25, 0.5)]
    tasks = built(tmp_path, rows, prompt="What is said in <audio>?", audio="s")
    assert contents(tasks) == [["What is said in ", wav(v), "?"] for v in (0.25, 0.5)]


def test_several_columns_template_and_system(tmp_path):
    rows = [{"q": "Same?", "a": data_address(png(1)), "b": data_address(png(2))}]
    tasks = built(
        tmp_path, rows, prompt="q", images=("a", "b"), template="Look: {prompt} Yes or no.",
        system="S",
    )  # fmt: skip
    assert contents(tasks) == [[png(1), png(2), "Look: Same? Yes or no."]]
    assert tasks.train_tasks[0].messages[0].text == "S"


def test_chat_messages_with_parts_of_both_forms(tmp_path):
    (tmp_path / "a.png").write_bytes(png(1))
    openai = {"type": "image_url", "image_url": {"url": data_address(png(2))}}
    rows = [
        {"m": [{"role": "user", "content": [{"type": "image", "image": "a.png"}, text("x")]}]},
        {"m": [{"role": "user", "content": [openai, text("y")]}]},
    ]
    tasks = built(tmp_path, rows, messages="m", template="<{prompt}>")
    assert contents(tasks) == [["<", png(1), "x", ">"], ["<", png(2), "y", ">"]]
    placed = [{"role": "user", "content": [text("z"), {"type": "image"}]}]
    rows = [{"m": placed, "images": ["a.png"]}]
    assert contents(built(tmp_path, rows, messages="m", images="images")) == [["z", png(1)]]


def text(words):
    return {"type": "text", "text": words}


def test_columns_called_image_and_audio_need_no_mapping(tmp_path):
    (tmp_path / "a.png").write_bytes(png(1))
    rows = [{"prompt": "Red?", "image": "a.png", "answer": "yes"}]
    tasks = built(tmp_path, rows)
    assert contents(tasks) == [[png(1), "Red?"]]
    assert tasks.fields == {"answer"}
    rows = [{"prompt": "Red?", "image": "a description", "answer": "yes"}]
    assert built(tmp_path, rows).fields == {"answer", "image"}


def test_rows_in_memory_with_bytes_and_pillow_images():
    rows = [{"prompt": "q", "image": png(1)}, {"prompt": "r", "image": {"bytes": png(2)}}]
    tasks = File(path=keep_rows(rows), held_out=HeldOutShare(share=0)).build(0, Path())
    assert contents(tasks) == [[png(1), "q"], [png(2), "r"]]
    rows = [{"prompt": "q", "image": Image.new("RGB", (8, 8), (9, 0, 0))}]
    (task,) = (
        File(path=keep_rows(rows), held_out=HeldOutShare(share=0)).build(0, Path()).train_tasks
    )
    assert isinstance(task.messages[0].content[0], ImagePart)
    with pytest.raises(UserError, match="holds bytes; expected text"):
        keep_rows([{"prompt": "q", "other": b"no media"}])


def test_a_function_that_draws(tmp_path):
    (tmp_path / "drawn.py").write_text(
        "from io import BytesIO\n"
        "from PIL import Image\n"
        "def make(rng):\n"
        "    red, into = rng.randrange(256), BytesIO()\n"
        "    Image.new('RGB', (4, 4), (red, 0, 0)).save(into, 'PNG')\n"
        "    return {'prompt': 'How red is <image>?', 'images': [into.getvalue()], 'answer': red}\n"
    )
    tasks = Function(path="drawn.py:make").build(0, tmp_path)
    task = tasks.train(0)
    assert [type(part).__name__ for part in task.messages[0].content] == [
        "TextPart",
        "ImagePart",
        "TextPart",
    ]
    assert tasks.fields == {"answer"}
    assert task == tasks.train(0)


def test_the_fingerprint_follows_the_files_and_not_their_folder(tmp_path):
    row = [{"prompt": "q", "image": "a.png"}]
    prints = []
    for folder, red in (("x", 1), ("y", 1), ("z", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.png").write_bytes(png(red))
        prints.append(built(tmp_path, row, images="image", prompt="prompt", media_folder=folder))
    same, again, other = (tasks.fingerprint for tasks in prints)
    assert same == again != other
    assert built(tmp_path, [{"prompt": "q"}], prompt="prompt").fingerprint == "179d7885831cb8e8"


HOSTILE = {
    "http": ("https://example.org/a.png", "a path or a data: address"),
    "file": ("file:///etc/passwd", "a path or a data: address"),
    "above": ("../secret.png", "leads out of"),
    "absolute": ("/etc/hostname", "leads out of"),
    "link": ("link.png", "leads out of"),
    "folder": (".", "no file, or larger"),
    "none": ("no.png", "is not there"),
    "NUL": ("a\0.png", "is no path"),
    "long": ("x" * 5000, "is no path"),
    "no base64": ("data:image/png;base64,@@", "as base64"),
    "no bytes": ("data:image/svg+xml,<svg/>", "expected data:image/png;base64"),
    "svg": (data_address(b"<svg/>", "image/svg+xml"), "SVG, XML or HTML"),
    "cut": (data_address(png(1)[:50]), "cut off or damaged"),
    "silent": (data_address(encode_sound([0.0], 8000)[:44], "audio/wav"), "no samples|cut off"),
    "number": (7, "expected bytes"),
    "too many": ([None] * 65, "65 images or sounds"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_values_get_one_line_with_their_row(name, tmp_path):
    value, line = HOSTILE[name]
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "secret.png").write_bytes(png(1))
    (inner / "link.png").symlink_to(tmp_path / "secret.png")
    rows = [{"q": "one", "i": data_address(png(5))}, {"q": "two", "i": value}]
    with pytest.raises(UserError, match=line) as raised:
        built(inner, rows, prompt="q", images="i")
    assert "rows.jsonl:2: 'i': " in str(raised.value)
    assert "\n" not in str(raised.value)
    tasks = built(inner, rows, prompt="q", images="i", bad_rows="skip")
    assert len(tasks.train_tasks) == 1
    assert "1 of 2 rows skipped" in tasks.notes[0]


@pytest.mark.parametrize(
    ("prompt", "line"),
    [
        ("<image> and <image>", r"1 image file\(s\), 2 place\(s\)"),
        ("<image2>", "expected as many"),
        ("<image> <image1>", "expected as many"),
        ("<audio>", r"0 audio file\(s\) and 1 place|1 image file"),
    ],
)
def test_places_and_files_must_agree(prompt, line, tmp_path):
    with pytest.raises(UserError, match=line):
        built(tmp_path, [{"q": prompt, "i": data_address(png(1))}], prompt="q", images="i")


@pytest.mark.skipif(not DATA.is_dir(), reason="the shared data is not here")
@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        (
            {"path": "chartqa/test.parquet", "prompt": "{qa.0.query}", "images": "image_png"},
            ImagePart,
        ),
        ({"path": "nlvr/dev.parquet", "prompt": "sentence", "images": "image_png"}, ImagePart),
        ({"path": "fsdd/test.parquet", "prompt": "Which digit?{id}", "audio": "wav"}, AudioPart),
    ],
)
def test_real_files(settings, kind):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    tasks = File(**settings).build(0, DATA)
    assert len(tasks.train_tasks) > 30
    for task in tasks.train_tasks:
        (part,) = task.messages[0].media
        assert isinstance(part, kind)


def test_places_by_number_alone_make_a_prompt(tmp_path):
    for red in (1, 2):
        (tmp_path / f"{red}.png").write_bytes(png(red))
    rows = [{"shown": ["1.png", "2.png"]}]
    tasks = built(tmp_path, rows, prompt="<image2> or <image1>?", images="shown")
    assert contents(tasks) == [[png(2), " or ", png(1), "?"]]


PICTURE = {"type": "image"}


def test_a_list_as_text_is_opened(tmp_path):
    (tmp_path / "1.png").write_bytes(png(1))
    (tmp_path / "rows.csv").write_text('q,i\nWhich?,"[""1.png"", ""1.png""]"\n')
    file = File(path="rows.csv", prompt="q", images="i", held_out=HeldOutShare(share=0))
    assert contents(file.build(0, tmp_path)) == [[png(1), png(1), "Which?"]]


def test_a_hash_must_have_the_kind_that_its_row_says(tmp_path):
    sound = shared_blobs().add(wav())
    part = {"type": "image", "sha256": sound.sha256, "media_type": "image/png"}
    row = {"m": [{"role": "user", "content": [part, {"type": "text", "text": "What?"}]}]}
    with pytest.raises(UserError, match="is audio/wav; its message says image/png"):
        built(tmp_path, [row], messages="m")


def test_hours_of_silence_in_a_small_file_are_not_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr("burnish.tasks.media_columns.MOST_VALUES", 1000)
    (tmp_path / "long.flac").write_bytes(encode_sound([0.0] * 1001, 8000, "flac"))
    with pytest.raises(UserError, match="cut it to 1,000 samples"):
        built(tmp_path, [{"q": "a", "s": "long.flac"}], prompt="q", audio="s")


@pytest.mark.parametrize(
    ("values", "is_media"),
    [
        (["a.wav", "b.opus", None, ""], True), (["a.m4a"], True), ([["a.m4a", "b.m4a"]], True),
        (["a.wav", 5], True),  # refused when it is read
        ([b"x"], True), ([5], False), (["0.85"], False),
        (["v2.10", "$3.99", "user@mail.com", "https://example.com"], False),
        (["a red square", "a.png"], False), (["A cat sat."], False), ([None, "", []], False),
    ],
)  # fmt: skip
def test_what_a_column_called_audio_holds(values, is_media):
    assert holds_media(values) is is_media


def test_a_column_that_is_named_as_a_field_stays_one(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "Q?", "answer": "1", "audio": "node.js"}\n')
    nothing = HeldOutShare(share=0.0)
    named = File(path="rows.jsonl", held_out=nothing, fields={"audio": "audio"})
    assert named.build(0, tmp_path).train_tasks[0].fields["audio"] == "node.js"
    with pytest.raises(UserError, match=r"node\.js is not there"):
        File(path="rows.jsonl", held_out=nothing).build(0, tmp_path)


def test_an_empty_cell_of_a_column_of_sounds_is_no_sound(tmp_path):
    (tmp_path / "a.wav").write_bytes(wav())
    (tmp_path / "rows.csv").write_text("prompt,audio\nOne?,a.wav\nTwo?,\n")
    tasks = File(path="rows.csv", held_out=HeldOutShare(share=0.0)).build(0, tmp_path).train_tasks
    counts = {one.messages[0].text[-4:]: len(one.messages[0].media) for one in tasks}
    assert counts == {"One?": 1, "Two?": 0}
