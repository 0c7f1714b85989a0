"""The study of one's own voices: its strings of digits, and how words are counted."""

import io

import numpy as np
import pytest
from lab.audio_tokenizer import own_voices

pa = pytest.importorskip("pyarrow")
soundfile = pytest.importorskip("soundfile")


@pytest.fixture
def digits(tmp_path, monkeypatch):
    """Two digits of two speakers; a digit's level says which one it is."""
    import pyarrow.parquet as pq

    rows = []
    for speaker in ("ann", "bob"):
        for digit in (3, 7):
            file = io.BytesIO()
            soundfile.write(file, np.full(800, digit / 10), own_voices.RATE, format="WAV")
            rows.append({"digit": digit, "speaker": speaker, "wav": file.getvalue()})
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    monkeypatch.setenv(own_voices.DATA, str(tmp_path))
    return tmp_path


def test_a_word_that_is_heard_a_hundred_times_counts_as_wrong_once_a_word():
    row = own_voices._row(
        "x", ["One two three.", "Four five six."], ["one " * 100, "four five six"]
    )
    assert row["word_error_rate"] == 0.5
