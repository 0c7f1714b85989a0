"""Studies of the audio tokenizer: sounds packed for another machine, tables that go on where they were."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from studies.audio_tokenizer import cpu
from studies.audio_tokenizer.gpu import as_words, ids_of
from studies.audio_tokenizer.packed import pack, unpack
from studies.audio_tokenizer.parts import Item


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
