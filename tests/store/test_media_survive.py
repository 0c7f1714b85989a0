"""Images and sounds survive the store, a kill, an export and the way back, bit for bit."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from store_samples import make_sample

from burnish.cli.entry import run as command
from burnish.errors import StoreError
from burnish.media import encode_sound
from burnish.records import Message, TextPart
from burnish.store import RunStore, export
from burnish.store.blobs import shared_blobs

pytest.importorskip("PIL", reason="pillow is not installed")
pytest.importorskip("soundfile", reason="soundfile is not installed")


def png(red):
    from io import BytesIO

    from PIL import Image

    into = BytesIO()
    Image.new("RGB", (8, 8), (red, 0, 0)).save(into, "PNG")
    return into.getvalue()


SOUND = encode_sound([0.0, 0.25, -0.25], 8000)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))


def seen_sample(step, index):
    """A sample with an image in its task and, in a later turn, another one from a tool."""
    blobs, sample = shared_blobs(), make_sample(step, index)
    asked = Message("user", (TextPart("Is "), blobs.add(png(step)), blobs.add(SOUND)))
    shown = Message("tool", (TextPart("a crop"), blobs.add(png(100 + step))))
    turns = msgspec.to_builtins([Message("assistant", "crop"), shown, Message("assistant", "yes")])
    trajectory = replace(sample.trajectory, info={"messages": turns})
    return replace(sample, task=replace(sample.task, messages=(asked,)), trajectory=trajectory)


def stored(folder, steps=3):
    with RunStore.create(folder, {}, {}) as store:
        for step in range(steps):
            store.append_rollouts(step, [seen_sample(step, index) for index in range(4)])
    return folder


def test_a_run_alone_has_every_byte_also_of_its_turns(tmp_path, monkeypatch):
    folder = stored(tmp_path / "run")
    moved = tmp_path / "elsewhere"
    folder.rename(moved)
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "another machine"))
    with RunStore.open(moved, read_only=True) as store:
        for sample in store.samples():
            image, sound = sample.task.media
            assert store.blobs.read(image) == png(sample.step)
            assert store.blobs.read(sound) == SOUND
            (crop,) = sample.trajectory.messages[1].media
            assert store.blobs.read(crop) == png(100 + sample.step)


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet"])
def test_every_export_has_the_files_beside_it(kind, tmp_path):
    if kind == "parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    path = tmp_path / "out" / f"samples.{kind}"
    path.parent.mkdir()
    assert export(stored(tmp_path / "run"), path) == 12
    files = sorted((path.parent / "samples_media").iterdir())
    wanted = [png(n) for n in (0, 1, 2, 100, 101, 102)] + [SOUND]
    assert sorted(file.read_bytes() for file in files) == sorted(wanted)
    for task in tasks_in(path):
        for part in task["messages"][0]["content"][1:]:
            suffix = part["media_type"].rpartition("/")[2]
            assert (path.parent / "samples_media" / f"{part['sha256']}.{suffix}").is_file()


def tasks_in(path):
    if path.suffix == ".parquet":
        import pyarrow.parquet as parquet

        return [json.loads(one) for one in parquet.read_table(path)["task"].to_pylist()]
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            return [json.loads(row["task"]) for row in csv.DictReader(file)]
    text = path.read_text()
    rows = json.loads(text) if path.suffix == ".json" else map(json.loads, text.splitlines())
    return [row["task"] for row in rows]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_an_exported_table_is_a_task_file_on_another_machine(kind, tmp_path, monkeypatch):
    from burnish.errors import UserError
    from burnish.tasks.files import File, HeldOutShare

    if kind == "parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    export(stored(tmp_path / "run", 1), tmp_path / f"samples.{kind}")
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "another machine"))
    file = File(path=f"samples.{kind}", messages="task.messages", held_out=HeldOutShare(share=0))
    with pytest.raises(UserError, match=r"is damaged or not here.* set media_folder"):
        file.build(0, tmp_path)
    tasks = replace(file, media_folder="samples_media").build(0, tmp_path)
    image, sound = tasks.train_tasks[0].media
    assert (shared_blobs().read(image), shared_blobs().read(sound)) == (png(0), SOUND)


def test_a_damaged_file_is_not_exported_and_not_read_back(tmp_path, monkeypatch):
    from burnish.errors import UserError
    from burnish.tasks.files import File, HeldOutShare

    folder = stored(tmp_path / "run", 1)
    export(folder, tmp_path / "samples.jsonl")
    with RunStore.open(folder, read_only=True) as store:
        part = next(iter(store.samples())).task.media[0]
        store.blobs.path(part.sha256).write_bytes(png(9))
    with pytest.raises(StoreError, match="is damaged"):
        export(folder, tmp_path / "again.jsonl")
    assert not (tmp_path / "again.jsonl").exists()
    (tmp_path / "samples_media" / f"{part.sha256}.png").write_bytes(png(9))
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "another machine"))
    share = HeldOutShare(share=0)
    file = File(
        path="samples.jsonl", messages="task.messages", media_folder="samples_media", held_out=share
    )
    with pytest.raises(UserError, match="is damaged: its contents do not have the hash"):
        file.build(0, tmp_path)


WRITER = """
import sys
from pathlib import Path
from test_media_survive import seen_sample
from burnish.store import RunStore

folder = Path(sys.argv[1])
exists = (folder / "config.json").exists()
store = RunStore.open(folder) if exists else RunStore.create(folder, {}, {})
step = max(0, (store.last_step() or 0) - 1)
while True:
    store.append_rollouts(step % 90, [seen_sample(step % 90, 0)])
    print(step, flush=True)
    step += 1
"""


def test_a_writer_killed_and_resumed_lacks_no_byte(tmp_path):
    folder = tmp_path / "run"
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    for _ in range(2):
        words = [sys.executable, "-c", WRITER, str(folder)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=here) as writer:
            for _ in range(4):
                assert writer.stdout.readline()
            writer.send_signal(signal.SIGKILL)
        with RunStore.open(folder, read_only=True) as store:
            samples = list(store.samples())
            assert len(samples) >= 4
            for sample in samples:
                assert store.blobs.read(sample.task.media[0]) == png(sample.step)


def test_show_and_export_name_them(tmp_path, capsys):
    folder = stored(tmp_path / "run", 1)
    assert command(["show", str(folder), "--sample", "0/train/0"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "PNG 8 x 8, 1 kB" in said
    assert "WAV 0.00 s at 8000 Hz" in said
    assert command(["export", str(folder), str(tmp_path / "s.jsonl")]) == 0
    assert "their images and sounds" in " ".join(capsys.readouterr().out.split())


def test_an_evaluation_over_http_sends_the_bytes(tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "lm"))
    from hostile_server import HostileServer, ok

    monkeypatch.chdir(tmp_path)
    for k in (1, 2, 3):
        (tmp_path / f"{k}.png").write_bytes(png(k))
    for name, numbers in (("train", [3]), ("test", [1, 2])):
        rows = [{"q": "How red is <image>?", "image": f"{k}.png", "answer": "7"} for k in numbers]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "sees.toml").write_text(
        '[model]\npath = "tiny"\n[task]\nkind = "file"\npath = "train.jsonl"\nprompt = "q"\n'
        'images = "image"\nfields = { answer = "answer" }\n'
        'held_out = { by = "file", path = "test.jsonl" }\n[[rewards]]\nkind = "numeric"\n'
    )
    with HostileServer([ok("7")] * 2) as server:
        assert command(["eval", f"{server.url}#m", "sees.toml", "--json"]) == 0
        sent = [request.body["messages"][-1]["content"] for request in server.requests]
    assert json.loads(capsys.readouterr().out)["score"] == 1.0
    assert sorted(part["image_url"]["url"] for parts in sent for part in parts[1:2]) == sorted(
        f"data:image/png;base64,{base64_of(png(k))}" for k in (1, 2)
    )


def base64_of(data):
    import base64

    return base64.b64encode(data).decode()
