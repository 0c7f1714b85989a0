"""A held-out sound and what an audio tokenizer made of it, on the page of a sample."""

import msgspec
import numpy as np
import pytest

from burnish.media import encode_sound
from burnish.records import AudioPart, Message, Reward, Task, TextPart, Trajectory
from burnish.store import RunStore, StoredSample
from burnish.store.blobs import Blobs
from burnish.training.sound_data import SoundSample, reconstruction, stored_samples
from burnish.view.pages.sample_page import sample_page
from burnish.view.pages.sounds import sounds_view
from burnish.view.server import routes


def heard(strengths=(0.0, 0.3)) -> SoundSample:
    wave = np.sin(np.arange(800) / 9).astype(np.float32)
    tried = zip(strengths, (1.2 * wave, 0.5 * wave), (4.0, 6.125), strict=True)
    return reconstruction("a/1.wav", 7, 8000, wave, tried)


def test_the_page_of_a_sound_has_original_and_reconstructions(tmp_path):
    with RunStore.create(tmp_path / "run", {"steps": 1}, {}, recipe="codec") as store:
        samples = stored_samples(1, 1, [heard()], store.blobs)
        store.append_evaluation(1, "held_out", samples, {"score": None})
        store.finish("finished")
    page = sample_page(tmp_path / "run", "held_out-1-1-1", 0)
    assert page["sounds"] is not None
    assert [one["label"] for one in page["sounds"]] == [
        "original: a/1.wav",
        "reconstruction: 4.00 dB",
        "with noise of 0.3 sd: 6.12 dB",
    ]
    blobs = Blobs(tmp_path / "run/blobs")
    assert len({one["part"].sha256 for one in page["sounds"]}) == 3
    assert all(blobs.read(one["part"])[:4] == b"RIFF" for one in page["sounds"])
    assert (page["reward"].value, page["info"]) == (-4.0, {})  # its turns are shown once, as sounds


@pytest.mark.parametrize("turns", [None, "text", [{"role": "x"}], [{"content": 3}], {"a": 1}])
def test_turns_that_are_none_leave_the_original(turns):
    part = AudioPart("0" * 64)
    task = Task("t", (Message("user", (TextPart("a"), part)),))
    info = {"messages": turns} if turns is not None else {}
    sample = StoredSample(
        step=0, split="eval:held_out", index=0, task=task,
        trajectory=Trajectory("e", "t", "e", (), "", role="codec", info=info),
        reward=Reward("log_spectral_distance", 1.0),
    )  # fmt: skip
    found = sounds_view(sample)
    assert found is not None
    assert [one["part"] for one in found] == [part]
    plain = msgspec.structs.replace(sample.trajectory, role="policy")
    assert sounds_view(msgspec.structs.replace(sample, trajectory=plain)) is None


def test_a_sound_is_drawn_once(tmp_path, monkeypatch):
    blobs = Blobs(tmp_path / "blobs")
    part = blobs.add(encode_sound([0.0, 0.5, -0.5], 8000))
    drawn: list[bytes] = []
    real = routes.sound_picture
    monkeypatch.setattr(routes, "sound_picture", lambda data: drawn.append(data) or real(data))
    pictures = [routes._picture_of(blobs.folder, part.sha256) for _ in range(3)]
    assert len(drawn) == 1
    assert pictures[0] == pictures[2]
