"""Media by content hash: stored once, checked on read, copied into the run that holds them."""

from __future__ import annotations

import hashlib
import multiprocessing
from pathlib import Path

import msgspec
import pytest
from store_samples import make_sample

from burnish.errors import StoreError, UserError
from burnish.records import AudioPart, ImagePart, Message, TextPart
from burnish.store import RunStore
from burnish.store.blobs import Blobs, media_type_of, shared_blobs

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(40))
WAV = b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(30)


def test_a_part_is_the_hash_and_the_type_of_its_bytes(tmp_path):
    blobs = Blobs(tmp_path)
    image, sound = blobs.add(PNG), blobs.add(WAV)
    assert image == ImagePart(hashlib.sha256(PNG).hexdigest(), "image/png")
    assert sound == AudioPart(hashlib.sha256(WAV).hexdigest(), "audio/wav")
    assert (blobs.read(image), blobs.read(sound)) == (PNG, WAV)
    assert blobs.add(PNG) == image
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 2, "stored once, and no draft is left"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\xff\xd8\xff\xe0abc", "image/jpeg"), (b"GIF89a....", "image/gif"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "image/webp"), (b"fLaC....", "audio/flac"),
        (b"OggS....", "audio/ogg"), (b"ID3\x04....", "audio/mpeg"),
        (b"\xff\xfb\x90....", "audio/mpeg"), (b"<svg xmlns='http://www.w3.org/2000/svg'/>", None),
        (b"<html><script>", None), (b"RIFX\x00\x00\x00\x00WAVE", None), (b"", None),
    ],
)  # fmt: skip
def test_only_known_kinds_have_a_type(data, kind):
    assert media_type_of(data) == kind


def test_what_is_no_image_or_sound_is_refused(tmp_path):
    with pytest.raises(UserError, match="HTML text: no image or sound known here"):
        Blobs(tmp_path).add(b"<html>!")


def test_a_damaged_or_missing_file_is_an_error(tmp_path):
    blobs = Blobs(tmp_path)
    image = blobs.add(PNG)
    path = blobs.path(image.sha256)
    path.write_bytes(PNG[:-1])
    with pytest.raises(StoreError, match="damaged"):
        blobs.read(image)
    path.unlink()
    with pytest.raises(StoreError, match="has no file"):
        blobs.read(image)
    with pytest.raises(StoreError, match=r"is audio/wav; its message says image/png"):
        blobs.read(ImagePart(blobs.add(WAV).sha256))


def test_damage_of_the_same_size_is_mended_where_the_bytes_are_at_hand(tmp_path):
    blobs = Blobs(tmp_path)
    image = blobs.add(PNG)
    blobs.path(image.sha256).write_bytes(PNG[:-1] + b"!")
    assert blobs.add(PNG) == image
    assert blobs.read(image) == PNG


@pytest.mark.parametrize("damaged", [b"", PNG[:-1] + b"!"])
def test_a_run_takes_whole_media_in_the_place_of_damaged_ones(tmp_path, damaged):
    source, run = Blobs(tmp_path / "cache"), Blobs(tmp_path / "run")
    image = source.add(PNG)
    path = run.path(image.sha256)
    path.parent.mkdir(parents=True)
    path.write_bytes(damaged)
    run.collect([Message("user", (image,))], source)
    assert run.read(image) == PNG


@pytest.mark.parametrize("sha256", ["../../etc/passwd", "A" * 64, "ab", "a" * 63 + "/"])
def test_only_a_hash_names_a_file(tmp_path, sha256):
    with pytest.raises(ValueError, match="64 lower-case hexadecimal digits"):
        ImagePart(sha256)
    with pytest.raises(ValueError, match="64 lower-case hexadecimal digits"):
        Blobs(tmp_path).path(sha256)
    body = msgspec.json.encode({"role": "user", "content": [{"type": "image", "sha256": sha256}]})
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(body, type=Message)


def test_two_processes_may_store_the_same_file(tmp_path):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        parts = pool.map(Blobs(tmp_path).add, [PNG] * 8)
    assert len(set(parts)) == 1
    assert Blobs(tmp_path).read(parts[0]) == PNG


def test_a_run_holds_the_media_of_its_samples(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    image = shared_blobs().add(PNG)
    message = Message("user", (TextPart("What is "), image, TextPart("?")))
    sample = make_sample(0, 0)
    task = msgspec.structs.replace(sample.task, messages=(message,))
    sample = msgspec.structs.replace(sample, task=task)
    with RunStore.create(tmp_path / "run", {}, {}) as store:
        store.append_rollouts(0, [sample])
    shared_blobs().path(image.sha256).unlink()
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        (found,) = store.samples()
        assert found.task.messages == (message,)
        assert found.task.prompt == f"What is [image {image.sha256[:12]}]?"
        assert store.blobs.read(image) == PNG


def test_a_sample_whose_media_are_missing_is_not_stored(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    sample = make_sample(0, 0)
    message = Message("user", (ImagePart("0" * 64),))
    task = msgspec.structs.replace(sample.task, messages=(message,))
    with RunStore.create(tmp_path / "run", {}, {}) as store:
        with pytest.raises(StoreError, match="has no file 000000000000"):
            store.append_rollouts(0, [msgspec.structs.replace(sample, task=task)])
        assert not list(store.samples())


def test_text_is_stored_as_before(tmp_path):
    text = Message("user", "hello")
    assert msgspec.json.encode(text) == b'{"role":"user","content":"hello"}'
    parts = Message("user", (TextPart("a"), ImagePart("0" * 64)))
    assert msgspec.json.decode(msgspec.json.encode(parts), type=Message) == parts
    assert (text.text, text.media) == ("hello", ())
    assert {parts: 1}[msgspec.json.decode(msgspec.json.encode(parts), type=Message)] == 1


@pytest.mark.parametrize(
    "kept",
    [None, 5, "hello", [5], [["user", "hi"]], [{"role": "assistant", "content": None}], [{}],
     [{"role": "tool", "content": [{"type": "table"}]}]],
)  # fmt: skip
def test_a_program_may_keep_anything_under_messages(tmp_path, kept):
    sample = make_sample(0, 0)
    trajectory = msgspec.structs.replace(sample.trajectory, info={"messages": kept})
    with RunStore.create(tmp_path / "run", {}, {}) as store:
        store.append_rollouts(0, [msgspec.structs.replace(sample, trajectory=trajectory)])
        assert [one.trajectory.info for one in store.samples()] == [{"messages": kept}]


def test_a_file_that_never_ends_is_not_read(tmp_path, monkeypatch):
    blobs = Blobs(tmp_path)
    with pytest.raises(UserError, match="/dev/zero is not a plain file"):
        blobs.add_file("/dev/zero")
    monkeypatch.setattr("burnish.store.blobs.MAX_BYTES", 10)
    (tmp_path / "large.png").write_bytes(PNG)
    with pytest.raises(UserError, match="of more than 10 bytes"):
        blobs.add_file(tmp_path / "large.png")


def test_a_run_waits_for_the_disk_and_the_cache_does_not(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    synced: list[Path] = []
    monkeypatch.setattr("burnish.store.durable.sync", synced.append)
    shared_blobs().add(PNG)
    assert not synced
    Blobs(tmp_path / "run").add(PNG)
    assert len(synced) == 2, "the file and its folder"


def test_a_file_that_a_power_cut_left_empty_is_stored_again(tmp_path):
    blobs = Blobs(tmp_path)
    part = blobs.add(PNG)
    blobs.path(part.sha256).write_bytes(b"")
    assert blobs.read(blobs.add(PNG)) == PNG
