"""Images and sounds of a run: served by their hash to whoever has the token, as what they are."""

from __future__ import annotations

import base64
import hashlib

import msgspec
import pytest
from starlette.testclient import TestClient
from viewed_runs import BASE, TOKEN, hostile_sample, open_client

from burnish.media import encode_sound
from burnish.records import Message, TextPart
from burnish.store import RunStore
from burnish.store.blobs import shared_blobs
from burnish.view.pages.runs import Runs
from burnish.view.server.app import make_app
from burnish.view.server.routes import Viewer

PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)
WAV = b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(30)
PAGE = b"<html><script>alert(1)</script></html>"


@pytest.fixture
def parts():
    return shared_blobs().add(PNG), shared_blobs().add(WAV)


@pytest.fixture
def folder(tmp_path, parts):
    sample = hostile_sample(0, 0)
    message = Message("user", (TextPart("What is this?"), *parts))
    task = msgspec.structs.replace(sample.task, messages=(message,))
    with RunStore.create(tmp_path / "seen", {}, {}) as store:
        store.append_rollouts(0, [msgspec.structs.replace(sample, task=task)])
    return tmp_path


@pytest.fixture
def viewed(folder):
    with open_client(folder) as client:
        yield client


def address(sha256: str) -> str:
    return f"/api/v1/runs/seen/blobs/{sha256}"


def test_a_message_names_its_media(viewed, parts):
    page = viewed.run("seen", "/sample", id="0/train/0")
    image, sound = parts
    assert page["task"]["messages"][0]["content"] == [
        {"type": "text", "text": "What is this?"},
        {"type": "image", "sha256": image.sha256, "media_type": "image/png"},
        {"type": "audio", "sha256": sound.sha256, "media_type": "audio/wav"},
    ]


@pytest.mark.parametrize(("index", "data", "kind"), [(0, PNG, "image/png"), (1, WAV, "audio/wav")])
def test_media_come_by_their_hash(viewed, parts, index, data, kind):
    answer = viewed.http.get(address(parts[index].sha256))
    assert (answer.status_code, answer.content) == (200, data)
    assert answer.headers["content-type"] == kind
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
    again = viewed.http.get(
        address(parts[index].sha256), headers={"if-none-match": answer.headers["etag"]}
    )
    assert (again.status_code, again.content) == (304, b"")


def test_a_player_may_ask_for_a_part(viewed, parts):
    """Otherwise it cannot be moved to another place."""
    url = address(parts[1].sha256)
    for asked, first, last in (
        ("4-7", 4, 7),
        ("40-", 40, len(WAV) - 1),
        ("0-9999", 0, len(WAV) - 1),
    ):
        answer = viewed.http.get(url, headers={"range": f"bytes={asked}"})
        assert (answer.status_code, answer.content) == (206, WAV[first : last + 1])
        assert answer.headers["content-range"] == f"bytes {first}-{last}/{len(WAV)}"
        assert answer.headers["content-type"] == "audio/wav"
        assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert viewed.http.get(url, headers={"range": "bytes=9999-"}).status_code == 416
    for odd in ("bytes=-5", "bytes=1-2,4-5", "lines=1-2", "bytes=" + "9" * 30 + "-"):
        answer = viewed.http.get(url, headers={"range": odd})
        assert (answer.status_code, answer.content) == (200, WAV)


def test_a_sound_is_drawn_and_a_broken_one_gets_one_line(tmp_path, parts):
    pytest.importorskip("soundfile", reason="soundfile is not installed")
    sound = shared_blobs().add(encode_sound([0.0, 0.5, -0.5, 0.0] * 500, 8000))
    sample = hostile_sample(0, 0)
    task = msgspec.structs.replace(sample.task, messages=(Message("user", (sound, *parts)),))
    with RunStore.create(tmp_path / "seen", {}, {}) as store:
        store.append_rollouts(0, [msgspec.structs.replace(sample, task=task)])
    with open_client(tmp_path) as client:
        page = client.http.get(f"{address(sound.sha256)}/picture").json()
        assert (page["seconds"], page["rate"], page["channels"]) == (0.25, 8000, 1)
        assert len(page["peaks"]) == 480
        assert len(base64.b64decode(page["bands"])) == 480 * page["band_count"]
        for sha256, code in ((parts[1].sha256, 400), (parts[0].sha256, 400), ("0" * 64, 404)):
            answer = client.http.get(f"{address(sha256)}/picture")
            assert answer.status_code == code
            assert "\n" not in answer.json()["error"]
        assert client.http.get(f"{address('..%2f..')}/picture").status_code in (400, 404)


@pytest.mark.parametrize(
    "data",
    [
        b"GIF89a/*" + bytes(20) + b"*/=1;alert(1)",
        PNG + b"<html><script>alert(1)</script></html>",
        b"\xff\xd8\xff\xfe\x00\x1c<script>alert(1)</script>",
        b"RIFF\x24\x00\x00\x00WAVE<svg onload=alert(1)>",
    ],
)
def test_a_polyglot_is_served_as_its_picture_and_cannot_run(tmp_path, data):
    part = shared_blobs().add(data)
    sample = hostile_sample(0, 0)
    task = msgspec.structs.replace(sample.task, messages=(Message("user", (part,)),))
    with RunStore.create(tmp_path / "seen", {}, {}) as store:
        store.append_rollouts(0, [msgspec.structs.replace(sample, task=task)])
    with open_client(tmp_path) as client:
        for asked in ({}, {"range": "bytes=0-"}, {"accept": "text/html"}):
            answer = client.http.get(address(part.sha256), headers=asked)
            assert answer.content == data
            assert answer.headers["content-type"] == part.media_type
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
            assert answer.headers["content-disposition"] == "inline"


def test_media_need_the_token(folder, parts):
    stranger = TestClient(make_app(Viewer(Runs(folder=folder)), TOKEN), base_url=BASE)
    assert stranger.get(address(parts[0].sha256)).status_code == 403


@pytest.mark.parametrize(
    ("sha256", "status"),
    [("0" * 64, 404), ("..%2f..%2frun.db", 404), ("A" * 64, 400), ("run.db", 400)],
)
def test_nothing_else_is_served(viewed, sha256, status):
    answer = viewed.http.get(address(sha256))
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]


def test_a_page_that_was_put_among_the_media_is_never_served(viewed, folder):
    sha256 = hashlib.sha256(PAGE).hexdigest()
    place = folder / "seen" / "blobs" / sha256[:2]
    place.mkdir(parents=True, exist_ok=True)
    (place / sha256).write_bytes(PAGE)
    answer = viewed.http.get(address(sha256))
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/json"


def test_a_damaged_file_is_never_served(viewed, folder, parts):
    sha256 = parts[0].sha256
    (folder / "seen" / "blobs" / sha256[:2] / sha256).write_bytes(PNG + b"x")
    answer = viewed.http.get(address(sha256))
    assert (answer.status_code, "damaged" in answer.json()["error"]) == (500, True)
