"""`burnish audio`: sounds to latents and back, probes with a control, figures of a copy."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file as torch_file

from burnish.api.audio import About, Latents, write_latents
from burnish.errors import StoreError
from burnish.media import encode_sound, read_sound, write_sound
from burnish.models.audio_tokenizer import new_representation, new_tokenizer, open_tokenizer

SIZES: dict[str, Any] = {
    "sampling_rate": 2000, "n_fft": 32, "frame_hop": 16, "strides": [2], "hidden_size": 16,
    "latent_size": 6,
}  # fmt: skip


@pytest.fixture
def model(tmp_path):
    new_tokenizer(tmp_path / "model", seed=1, **SIZES)
    return tmp_path / "model"


def tone(pitch: float, size: int = 3000) -> np.ndarray:
    return (0.3 * np.sin(2 * np.pi * pitch * np.arange(size) / 2000)).astype(np.float32)


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_latents_come_back_as_the_sound_of_the_whole(typed, model, tmp_path, kind):
    # Longer than a block: what is streamed is what one piece gives.
    wave = tone(200, 2000 * 23 + 7)
    write_sound(tmp_path / "a.wav", wave, 2000)
    latents = tmp_path / f"a.{kind}"
    done = typed("audio", "encode", model, tmp_path / "a.wav", "-o", latents, "--json")
    assert done.code == 0, done.err
    said = json.loads(done.out)
    assert (said["channels"], said["sr"], said["samples"]) == (6, 2000, len(wave))
    assert said["frames"] == -(-len(wave) // 32)
    done = typed("audio", "decode", model, latents, "-o", tmp_path / "b.wav")
    assert done.code == 0, done.err
    network = open_tokenizer(model)
    samples = torch.from_numpy(read_sound(tmp_path / "a.wav").samples)
    with torch.no_grad():
        z = network.encode(samples).latents.half().float()
        whole = network.decode(z, num_samples=len(wave))[0].clamp(-1, 1).numpy()
    np.testing.assert_allclose(read_sound(tmp_path / "b.wav").samples, whole, atol=2e-3)


@pytest.mark.parametrize("size", [50, 100, 500])
def test_a_window_longer_than_the_sound_is_decoded_whole(typed, tmp_path, size):
    model = tmp_path / "wide"
    new_tokenizer(model, seed=1, **SIZES | {"n_fft": 512})
    write_sound(tmp_path / "a.wav", tone(200, size), 2000)
    typed("audio", "encode", model, tmp_path / "a.wav", "-o", tmp_path / "a.npz")
    done = typed("audio", "decode", model, tmp_path / "a.npz", "-o", tmp_path / "b.wav")
    assert done.code == 0, done.err
    z = torch.from_numpy(np.load(tmp_path / "a.npz")["z"].astype(np.float32))
    with torch.no_grad():
        whole = open_tokenizer(model).decode(z, num_samples=size)[0].clamp(-1, 1).numpy()
    found = read_sound(tmp_path / "b.wav").samples
    assert found.shape == whole.shape
    np.testing.assert_allclose(found, whole, atol=1e-4)


def test_latents_of_another_tokenizer_are_refused(typed, model, tmp_path):
    write_sound(tmp_path / "a.wav", 0.3 * np.sin(np.arange(2000) / 9), 2000)
    for kind in ("npz", "safetensors"):
        latents = tmp_path / f"a.{kind}"
        assert typed("audio", "encode", model, tmp_path / "a.wav", "-o", latents).code == 0
        other = open_tokenizer(model)
        with torch.no_grad():
            next(other.parameters()).add_(0.01)
        other.save_pretrained(tmp_path / "other")
        done = typed("audio", "decode", tmp_path / "other", latents, "-o", tmp_path / "b.wav")
        assert done.code == 2
        assert "was encoded by another tokenizer" in done.err
        assert done.err.count("\n") == 1
        assert not (tmp_path / "b.wav").exists()


def test_latents_that_cannot_be_written_are_one_line_and_leave_nothing(tmp_path):
    found = Latents(np.zeros((2, 3), np.float16), About(2000, 62.5, "none", 64))
    (tmp_path / "a.npz").mkdir()
    (tmp_path / "file").write_text("")
    for target in (tmp_path / "a.npz", tmp_path / "file" / "b.npz"):
        with pytest.raises(StoreError, match=f"cannot write {target}: ") as refused:
            write_latents(target, found)
        assert "\n" not in str(refused.value)
    assert {file.name for file in tmp_path.iterdir()} == {"a.npz", "file"}


def test_channels_and_rates_are_brought_to_the_models(typed, model, tmp_path):
    wave = 0.3 * np.sin(np.arange(192_000) / 60)
    write_sound(tmp_path / "wide.wav", np.stack([wave] * 8, 1), 192_000)
    done = typed(
        "audio", "encode", model, tmp_path / "wide.wav", "-o", tmp_path / "z.npz", "--json"
    )
    assert done.code == 0, done.err
    assert json.loads(done.out)["samples"] == 2000


def test_files_that_are_no_latents_of_this_tokenizer_get_one_line(typed, model, tmp_path):
    about = {
        "z": np.zeros((3, 6), np.float16), "sr": 2000, "frame_rate": 62.5,
        "bottleneck": "norm+noise", "samples": 90,
    }  # fmt: skip
    for name, changed in {
        "other": {"z": np.zeros((3, 9), np.float16)},
        "nan": {"z": np.full((3, 6), np.nan, np.float16)},
        "foreign": {"bottleneck": "kl"},
    }.items():
        np.savez(tmp_path / f"{name}.npz", **{**about, **changed})
    np.savez(tmp_path / "less.npz", z=np.zeros((3, 6)))
    (tmp_path / "junk.npz").write_bytes(b"junk")
    (tmp_path / "junk.safetensors").write_bytes(b"junk")
    for name, said in (
        ("other.npz", "latents: got shape (3, 9), expected (3, 6)"),
        ("nan.npz", "latents:"),
        ("foreign.npz", "'kl'"),
        ("less.npz", "missing required field"),
        ("junk.npz", "is no file of latents"),
        ("junk.safetensors", "is no file of latents"),
        ("a.txt", "ends in .npz or .safetensors"),
    ):
        done = typed("audio", "decode", model, tmp_path / name, "-o", tmp_path / "b.wav")
        assert (done.code, said in " ".join(done.err.split())) == (2, True), (name, done.err)
        assert not (tmp_path / "b.wav").exists()


def test_a_probe_stands_beside_its_control(typed, model, tmp_path):
    rng = np.random.default_rng(0)
    for side, count in (("train", 16), ("test", 8)):
        pitches = [(150.0, 700.0)[n % 2] + rng.uniform(-30, 30) for n in range(count)]
        rows = [
            {
                "wav": encode_sound(tone(pitch, 600), 2000),
                "height": "low" if pitch < 400 else "high",
            }
            for pitch in pitches
        ]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{side}.parquet")
    new_representation(tmp_path / "encoder", latent_size=6, hidden_size=16, num_hidden_layers=1)
    words = ("audio", "probe", model, tmp_path / "train.parquet", tmp_path / "test.parquet")
    done = typed(*words, "--label", "height", "--encoder", tmp_path / "encoder", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    names = [row["features"] for row in found["rows"]]
    assert names == ["latents", "untrained tokenizer", "encoder", "untrained encoder"]
    assert found["majority"] == 0.5
    assert found["rows"][0]["accuracy"][0] >= 0.75
    shown = typed(*words, "--label", "height")
    assert "most frequent label" in shown.out
    missing = typed(*words, "--label", "colour")
    assert missing.code == 2
    assert "no column 'colour'; it has wav, height" in missing.err


def test_figures_of_a_copy(typed, tmp_path):
    write_sound(tmp_path / "a.wav", tone(200), 2000)
    write_sound(tmp_path / "b.wav", 0.5 * tone(200), 2000)
    words = ("audio", "metrics", tmp_path / "b.wav", tmp_path / "a.wav")
    done = typed(*words, "--only", "lsd,si_sdr", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert sorted(found) == ["compared", "lsd", "seconds", "si_sdr"]
    assert found["lsd"]["value"] > 1
    assert (found["seconds"], found["compared"]) == ({"made": 1.5, "original": 1.5}, 1.5)
    assert "of the first" not in typed(*words, "--only", "lsd").out
    write_sound(tmp_path / "b.wav", 0.5 * tone(200, 1000), 2000)
    said = " ".join(typed(*words, "--only", "lsd").out.split())
    assert "of the first 0.50 s:" in said
    assert "has 0.50 s and" in said
    found = json.loads(typed(*words, "--only", "lsd", "--json").out)
    assert (found["seconds"], found["compared"]) == ({"made": 0.5, "original": 1.5}, 0.5)
    refused = typed(*words, "--only", "mos")
    assert refused.code == 2
    assert "--only: got 'mos', expected lsd" in refused.err


def change(weights: dict[str, torch.Tensor], how: str) -> None:
    if how == "missing":
        del weights["encoder.0.weight"]
    elif how == "shape":
        weights["encoder.0.weight"] = weights["encoder.0.weight"][:, :3]
    elif how == "more":
        weights["more"] = torch.zeros(2)
    else:
        weights["encoder.0.weight"][0, 0, 0] = torch.nan


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("missing", "encoder.0.weight is missing"), ("shape", "encoder.0.weight has another shape"),
        ("more", "more has no place"), ("nan", "its weight encoder.0.weight holds NaN"),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit_are_never_drawn_at_random(typed, model, tmp_path, how, said):
    weights = load_file(model / "model.safetensors")
    change(weights, how)
    torch_file(
        {name: value.contiguous() for name, value in weights.items()},
        model / "model.safetensors",
        metadata={"format": "pt"},
    )
    write_sound(tmp_path / "a.wav", tone(200), 2000)
    done = typed("audio", "encode", model, tmp_path / "a.wav", "-o", tmp_path / "z.npz")
    assert done.code == 2
    assert said in " ".join(done.err.split())
    assert len(done.err.strip().splitlines()) <= 2  # one line, perhaps folded


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["a", None, "b", "a"], "row 2 has no label"),
        ([1.0, float("nan"), 2.0, 1.0], "row 2 has no label"),
        (["a"] * 4, "has 1 of its values"),
        (["x", "y", "x", "y"], "0 of them are in"),
        ([], "has 0 of its values"),
    ],
)
def test_labels_that_teach_nothing_are_refused(typed, model, tmp_path, labels, said):
    clips = [encode_sound(tone(100 + 50 * place, 400), 2000) for place in range(4)]
    for name, found in (("train", labels), ("test", ["a", "b", "a", "b"])):
        table = {"audio": pa.array(clips[: len(found)], pa.binary()), "who": found}
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
    sides = tmp_path / "train.parquet", tmp_path / "test.parquet"
    done = typed("audio", "probe", model, *sides, "--label", "who")
    assert done.code == 2
    assert said in " ".join(done.err.split())


def test_whole_labels_are_the_same_as_floats_and_as_integers(typed, model, tmp_path):
    clips = [encode_sound(tone(100 + 50 * place, 400), 2000) for place in range(4)]
    for name, labels in (("train", [1.0, 2.0, 1.0, 2.5]), ("test", [1, 2, 1, 2])):
        table = {"audio": pa.array(clips, pa.binary()), "who": labels}
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
    sides = tmp_path / "train.parquet", tmp_path / "test.parquet"
    done = typed("audio", "probe", model, *sides, "--label", "who", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["majority"] == 0.5
