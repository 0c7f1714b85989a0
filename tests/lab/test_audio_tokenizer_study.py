"""Studies of the audio tokenizer: packed sounds, tables that go on where they were."""

import numpy as np
import pytest
import torch
from lab.audio_tokenizer import speech
from lab.audio_tokenizer.packed import pack, unpack
from lab.audio_tokenizer.parts import Item

from burnish.errors import ArgumentError
from burnish.models.audio_tokenizer import new_tokenizer, open_speech_folder, save_speech_folder
from burnish.models.audio_tokenizer.spelling import ALPHABET


def test_packed_sounds_come_back_within_twelve_bits(tmp_path):
    rng = np.random.default_rng(0)
    waves = [np.clip(rng.normal(0, 0.4, size), -1, 1).astype(np.float32) for size in (1, 500, 77)]
    sets = {
        "a": [Item("x", waves[0], "one two")],
        "b 0": [Item(str(n), w) for n, w in enumerate(waves)],
    }
    pack(tmp_path / "some.pack", sets)
    found = unpack(tmp_path / "some.pack")
    assert [item.text for item in found["a"]] == ["one two"]
    for item, wave in zip(found["b 0"], waves, strict=True):
        np.testing.assert_allclose(item.samples, wave, atol=16 / 32768)
    pack(tmp_path / "fine.pack", sets, step=1)
    np.testing.assert_allclose(
        unpack(tmp_path / "fine.pack")["b 0"][1].samples, waves[1], atol=4e-5
    )


def test_spectra_of_packed_sounds_keep_their_signal_and_voices(tmp_path):
    time = np.arange(5000) / 16_000
    wave = (0.4 * np.sin(2 * np.pi * 220 * time) * np.hanning(5000)).astype(np.float32)
    items = [Item("x", wave, "a tone", {"voice": "hibari"}), Item("y", wave[:1])]
    texts = [Item("0", np.zeros(0, np.float32), "Say this.")]
    pack(tmp_path / "some.pack", {"spoken": items, "say": texts}, scales={"spoken": 16.0})
    found = unpack(tmp_path / "some.pack")
    assert found["spoken"][0].labels["voice"] == "hibari"
    assert [len(item.samples) for item in found["spoken"]] == [5000, 1]
    assert (found["say"][0].text, len(found["say"][0].samples)) == ("Say this.", 0)
    error = found["spoken"][0].samples - wave
    assert 10 * np.log10((wave**2).sum() / (error**2).sum()) > 20


def test_speech_trains_on_whole_patches_and_its_engine_is_read_again(tmp_path):
    tokenizer = new_tokenizer(
        sampling_rate=16_000, n_fft=640, frame_hop=320, strides=[2], hidden_size=8, latent_size=4
    )
    rng = np.random.default_rng(0)
    items = [
        Item("x", rng.normal(0, 0.1, size).astype(np.float32), text, {"voice": voice})
        for size, text, voice in (
            (9000, "No!", "hibari"),
            (7000, "Oh 2.", "piper:joe"),
            (99, "", ""),
        )
    ]
    names = ["heart", "joe"]
    corpus = speech.corpus_of(tokenizer, items, names)
    # 640 samples a frame: 14.1 and 10.9 of them, in patches of two; 99 samples are too few.
    assert corpus.frames.tolist() == [10, 14]
    assert corpus.voices.tolist() == [1, 0]
    text, latents, mask, _ = corpus.rows(torch.tensor([0, 1]))
    assert [ALPHABET[i - 1] for i in text[1].tolist() if i] == ["n", "o", "!"]
    assert mask.sum(1).tolist() == [10, 14]
    assert not latents[0, 10:].any()
    model, about = speech.train_speech(corpus, names, seconds=60, most=2, batch=2, **speech.TINY)
    assert about["steps"] == 2
    folder = save_speech_folder(tmp_path / "speech", tokenizer, model)
    again = open_speech_folder(folder).generator
    for name, value in model.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], value, atol=2e-3, rtol=2e-3)
    made = again.generate(text[:1], torch.Generator(), voice="joe", most_patches=2, least_patches=2)
    assert made.shape == (1, 4, 4)
    with pytest.raises(ArgumentError, match="voice: got 'jo', expected heart, joe"):
        again.generate(text[:1], torch.Generator(), voice="jo")
