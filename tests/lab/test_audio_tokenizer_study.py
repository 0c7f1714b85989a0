"""Studies of the audio tokenizer: packed sounds, tables that go on where they were."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from lab.audio_tokenizer import cpu, frozen_smollm2, gpu, speech
from lab.audio_tokenizer.gpu import as_words, ids_of
from lab.audio_tokenizer.packed import pack, unpack
from lab.audio_tokenizer.parts import Item

from burnish.errors import ArgumentError
from burnish.lm.folder import find_folder
from burnish.lm.tokenizer import Tokenizer
from burnish.models.audio_tokenizer import new_tokenizer, open_speech_folder, save_speech_folder
from burnish.models.audio_tokenizer.spelling import ALPHABET


def test_packed_sounds_come_back_within_twelve_bits(tmp_path: Path) -> None:
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


def test_digits_of_a_transcript_are_words() -> None:
    assert as_words(" 824.") == "eight two four"
    assert as_words("One, nine-four") == "One nine four"
    assert ids_of("zero nine") == [1, 10]


def test_rows_are_read_as_written_and_a_single_seed_has_no_interval(tmp_path: Path) -> None:
    rows = [cpu.Row("distance", "plain", noise, 0, 7.0) for noise in cpu.NOISE]
    cpu._write(tmp_path, rows)
    with (tmp_path / "cpu.csv").open("a", encoding="utf-8") as file:
        file.write("distance,kl")
    assert cpu.read_rows(tmp_path / "cpu.csv") == rows
    assert "| plain | 7.00 | 7.00 | 7.00 | 1 |" in cpu.report(rows)
    assert "| kl | - | - | - | 0 |" in cpu.report(rows)


def test_spectra_of_packed_sounds_keep_their_signal_and_voices(tmp_path: Path) -> None:
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


def test_speech_trains_on_whole_patches_and_its_engine_is_read_again(tmp_path: Path) -> None:
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


def test_speech_from_a_folder_without_its_voices_is_refused(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["gpu", "--packed", str(tmp_path), "--speech"])
    with pytest.raises(SystemExit):
        gpu.main()
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith("no voices of espeak; write it with packed --hibari 60 --joe 15")


def test_texts_for_a_frozen_language_model_end_where_the_word_ends() -> None:
    tokenizer = Tokenizer.from_folder(find_folder("tiny"))
    texts = frozen_smollm2.texts_of([3, 7], tokenizer)
    for ids, word in zip(texts.ids, ("three", "seven"), strict=True):
        assert tokenizer.decode(ids[texts.prompt : -1]).strip() == word
        assert ids[-1] in tokenizer.eos_ids
    rows = [frozen_smollm2.Row("untrained", seed, 0.9, 0.5, 1.0) for seed in range(2)]
    assert "| untrained | 0.90 [0.90, 0.90] | 0.50 [0.50, 0.50] | 2 |" in frozen_smollm2.report(
        rows, 5
    )
