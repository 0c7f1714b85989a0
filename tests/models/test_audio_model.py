"""The autoencoder of audio: five bottlenecks, saved, padded and streamed."""

import math
from contextlib import suppress
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
import transformers
from hypothesis import strategies as st

from burnish.errors import ArgumentError
from burnish.models import quiet_transformers
from burnish.models.audio_tokenizer import (
    AudioTokenizerConfig,
    AudioTokenizerModel,
    StreamingDecoder,
    StreamingEncoder,
    codec_loss,
    draw_noise,
    new_tokenizer,
)
from burnish.models.audio_tokenizer.modeling_audio_tokenizer import Residual
from burnish.models.audio_tokenizer.spectral import (
    mel_filters,
    reconstruction_terms,
    spectrum,
    waveform,
)

SIZES: dict[str, Any] = {"n_fft": 32, "frame_hop": 16, "hidden_size": 16, "latent_size": 6}
WAVES = 0.3 * torch.randn(2, 501, generator=torch.Generator().manual_seed(1))

BOTTLENECKS = ("plain", "kl", "sigma", "norm", "norm+noise")


def model_of(**changes: Any) -> AudioTokenizerModel:
    model = new_tokenizer(seed=3, **SIZES | {"strides": [2, 3]} | changes)
    return model.eval().requires_grad_(False)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_magnitudes_carry_no_phase_and_complex_spectra_do():
    turned = -WAVES  # every phase by half a turn
    for features, is_same in (("magnitude", True), ("complex", False)):
        model = model_of(features=features)
        one, two = (model.encode(waves).latents for waves in (WAVES, turned))
        assert torch.equal(one, two) == is_same


def test_a_residual_unit_is_that_of_numpy():
    unit = Residual(3, kernel=3, dilation=2, causal=True).requires_grad_(False)
    x_CT = torch.randn(3, 9, generator=torch.Generator().manual_seed(0))
    padded = np.pad(x_CT.numpy(), ((0, 0), (4, 0)))
    taps, bias = unit.over_time.weight.numpy()[:, 0], unit.over_time.bias.numpy()
    mixed = sum(taps[:, k, None] * padded[:, 2 * k : 2 * k + 9] for k in range(3)) + bias[:, None]
    normal = mixed / np.sqrt((mixed**2).mean(0) + 1e-6) * unit.norm.weight.numpy()[:, None]
    wide = unit.widen.weight.numpy()[..., 0] @ normal + unit.widen.bias.numpy()[:, None]
    active = np.array([0.5 * w * (1 + math.erf(w / math.sqrt(2))) for w in wide.ravel()])
    narrow = unit.narrow.weight.numpy()[..., 0] @ active.reshape(wide.shape)
    expected = x_CT.numpy() + narrow + unit.narrow.bias.numpy()[:, None]
    np.testing.assert_allclose(unit(x_CT[None])[0].numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("bottleneck", BOTTLENECKS)
def test_a_saved_model_is_the_same_model(bottleneck, tmp_path):
    model = model_of(bottleneck=bottleneck)
    model.save_pretrained(tmp_path)
    for auto in (transformers.AutoModelForAudioTokenization, transformers.AutoModel):
        again = auto.from_pretrained(tmp_path).eval()
        assert type(again) is AudioTokenizerModel
        assert torch.equal(model(WAVES).audio_values, again(WAVES).audio_values)


def test_rates_and_lengths():
    config = AudioTokenizerConfig()
    assert (config.hop_length, config.frame_rate, config.latent_size) == (320, 25.0, 64)
    model = model_of()
    assert model.config.hop_length == 96
    for samples in (1, 95, 96, 97, 501):
        latents = model.encode(WAVES[:, :samples]).latents
        assert latents.shape == (2, -(-samples // 96), 6)
        assert model.decode(latents).shape == (2, 96 * latents.shape[1])
        assert model(WAVES[:, :samples]).audio_values.shape == (2, samples)
    assert model.decode(latents[0], num_samples=500).shape == (1, 500)


def test_same_seed_same_weights():
    torch.manual_seed(0)
    one = new_tokenizer(seed=5, **SIZES).state_dict()
    torch.manual_seed(1)
    two = new_tokenizer(seed=5, **SIZES).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("bottleneck", ["kl", "norm+noise"])
@pytest.mark.parametrize("size", [1, 7, 96, 130, 501])
def test_a_stream_is_equal_to_the_whole(bottleneck, size):
    model = model_of(bottleneck=bottleneck, residual_dilations=[1, 3])
    waves = WAVES[:, :120] if size == 1 else WAVES
    encoder, back = StreamingEncoder(model), StreamingDecoder(model)
    latents, samples = [], []
    for chunk in waves.split(size, dim=1):
        latents.append(encoder.push(chunk))
        samples.append(back.push(latents[-1]))
    latents.append(encoder.finish())
    samples += [back.push(latents[-1]), back.finish()]
    whole = model.encode(waves).latents
    close(torch.cat(latents, 1), whole)
    close(torch.cat(samples, 1), model.decode(whole))


@hypothesis.settings(deadline=None, max_examples=25)
@hypothesis.given(
    hop=st.sampled_from([2, 6, 16]),
    hops=st.integers(2, 20),
    strides=st.lists(st.integers(1, 3), min_size=1, max_size=2),
    chunks=st.lists(st.integers(0, 5), min_size=1, max_size=8),
    samples=st.integers(1, 200),
)
def test_streams_of_any_sizes_are_equal_to_the_whole(hop, hops, strides, chunks, samples):
    # A window may reach further than many latents, and than the whole sound.
    model = model_of(n_fft=hop * hops, frame_hop=hop, strides=strides)
    waves = WAVES[:, :samples]
    encoder, back = StreamingEncoder(model), StreamingDecoder(model)
    pieces = [encoder.push(one) for one in waves.split(13, dim=1)] + [encoder.finish()]
    latents = torch.cat(pieces, 1)
    close(latents, model.encode(waves).latents)
    sizes = [min(size, latents.shape[1]) for size in chunks]
    found, start = [], 0
    for size in sizes:
        found.append(back.push(latents[:, start : start + size]))
        start = min(start + size, latents.shape[1])
    found += [back.push(latents[:, start:]), back.finish()]
    close(torch.cat(found, 1), model.decode(latents))


def test_later_samples_change_no_earlier_latent_unless_the_model_looks_ahead():
    changed = WAVES.clone()
    changed[:, 300:] = 0
    seen = (300 - 8) // 96  # latents whose windows end before the change
    for causal in (True, False):
        model = model_of(causal=causal, kernel_size=9)
        one, two = (model.encode(x).latents[:, :seen] for x in (WAVES, changed))
        assert torch.equal(one, two) == causal
    with pytest.raises(ArgumentError, match="look ahead"):
        StreamingEncoder(model)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("size", [200, 288])
def test_a_padded_row_is_as_if_alone(size, causal):
    model = model_of(causal=causal, bottleneck="plain")
    mask = torch.ones_like(WAVES)
    mask[0, size:] = 0
    found = model.encode(WAVES, mask)
    alone = model.encode(WAVES[:1, :size]).latents
    assert found.latent_mask.sum(1).tolist() == [3, 6]
    close(found.latents[:1, :3], alone)
    assert not found.latents[0, 3:].any()
    sound = model(WAVES, padding_mask=mask).audio_values[:1, :size]
    close(sound, model(WAVES[:1, :size]).audio_values)
    with pytest.raises(ArgumentError, match="padding at the end"):
        model.encode(WAVES, mask.flip(1))


def test_evaluation_draws_nothing_and_training_what_the_bottleneck_says():
    for bottleneck in BOTTLENECKS:
        model = model_of(bottleneck=bottleneck)
        before = torch.random.get_rng_state()
        clean = model(WAVES).audio_values
        assert torch.equal(clean, model(WAVES).audio_values)
        assert torch.equal(before, torch.random.get_rng_state())
        model.train()
        one = model(WAVES, generator=torch.Generator().manual_seed(1)).audio_values
        again = model(WAVES, generator=torch.Generator().manual_seed(1)).audio_values
        assert torch.equal(one, again)
        assert torch.equal(one, clean) == (bottleneck in ("plain", "norm"))
    quiet = model_of(noise_gamma=0.0)
    assert torch.equal(quiet(WAVES).audio_values, quiet.train()(WAVES).audio_values)


def test_draws_have_the_distribution_of_their_bottleneck():
    generator = torch.Generator().manual_seed(0)
    uniform = draw_noise(AudioTokenizerConfig(noise_gamma=2.0), 4000, 1, generator)
    assert uniform is not None
    assert uniform.alpha is not None
    assert 0 <= float(uniform.alpha.min()) < float(uniform.alpha.max()) <= 2
    assert float(uniform.alpha.square().mean()) == pytest.approx(4 / 3, rel=0.05)
    normal = draw_noise(AudioTokenizerConfig(bottleneck="noise"), 4000, 1, generator)
    assert normal is not None
    assert normal.alpha is not None
    assert float(normal.alpha.std()) == pytest.approx(0.625, rel=0.05)
    posterior = draw_noise(AudioTokenizerConfig(bottleneck="kl"), 3, 2, generator)
    assert posterior is not None
    assert posterior.alpha is None
    assert draw_noise(AudioTokenizerConfig(bottleneck="norm"), 3, 2) is None


def test_latents_are_normalised_and_the_kl_is_that_of_gaussians():
    latents = model_of(bottleneck="norm", norm_eps=1e-9).encode(WAVES).latents
    close(latents.mean(-1), torch.zeros(2, 6))
    close(latents.square().mean(-1), torch.ones(2, 6))
    model = model_of(bottleneck="kl")
    padded = torch.nn.functional.pad(WAVES, (8, 75 + 8))
    mean, logvar = model.code_windows(padded).chunk(2, -1)
    posterior = torch.distributions.Normal(mean, (logvar / 2).exp())
    expected = torch.distributions.kl_divergence(posterior, torch.distributions.Normal(0.0, 1.0))
    close(model(WAVES).kl, expected.mean())
    assert model_of()(WAVES).kl is None


def test_renormalised_latents_of_another_scale_decode_alike():
    model = model_of(norm_eps=1e-9)
    latents = model.encode(WAVES).latents
    close(model.decode(5 * latents + 2, renormalise=True), model.decode(latents))


@pytest.mark.parametrize("bottleneck", BOTTLENECKS)
def test_silence_has_finite_sound_and_gradients(bottleneck):
    model = model_of(bottleneck=bottleneck).train().requires_grad_(True)
    for waves in (torch.zeros(1, 300), torch.ones(1, 300)):
        output = model(waves)
        codec_loss(output.audio_values, waves, 8000, windows=(32, 64)).loss.backward()
        assert bool(output.audio_values.isfinite().all())
        assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


def test_channels_are_averaged():
    model = model_of()
    stereo = torch.stack((WAVES, -0.5 * WAVES), 1)
    assert torch.equal(model.encode(stereo).latents, model.encode(stereo.mean(1)).latents)


def test_windows_are_inverted():
    for size, hop in ((32, 16), (48, 16), (320, 160)):
        padded = torch.nn.functional.pad(WAVES[:, : 3 * hop], ((size - hop) // 2,) * 2)
        frames = spectrum(padded, size, hop)
        assert frames.shape == (2, 3, size // 2 + 1)
        close(waveform(frames, size, hop), WAVES[:, : 3 * hop])


def test_the_spectral_loss_is_that_of_numpy():
    one, two = WAVES[0, :70].double().numpy(), WAVES[1, :70].double().numpy()
    expected = []
    for size in (16, 32):
        window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)
        sides = []
        for wave in (one, two):
            padded = np.pad(wave, (size // 2, 2 * size))
            starts = range(0, 70, size // 4)
            frames = np.stack([padded[start : start + size] * window for start in starts])
            sides.append(np.abs(np.fft.rfft(frames)) / np.sqrt(size))
        logs = np.log(np.maximum(sides[0], 1e-5)) - np.log(np.maximum(sides[1], 1e-5))
        expected.append((np.abs(sides[0] - sides[1]).mean(), np.abs(logs).mean()))
    found = codec_loss(one, two, 8000, windows=(16, 32))
    plain, logs = np.mean(expected, 0)
    assert found.parts["magnitude"].item() == pytest.approx(plain)
    assert found.parts["log_magnitude"].item() == pytest.approx(logs)


def test_padding_has_no_part_in_the_loss():
    one, two = WAVES[:1].double(), WAVES[1:].double()
    longer, other = (torch.nn.functional.pad(x, (0, 77), value=0.5) for x in (one, two))
    kept = codec_loss(longer, other, 8000, lengths=[501], windows=(16, 32))
    alone = codec_loss(one, two, 8000, windows=(16, 32))
    assert kept.loss.item() == pytest.approx(alone.loss.item())
    parts = alone.parts
    weighted = parts["magnitude"] + parts["log_magnitude"] + 15 * parts["mel"] + 10 * parts["wave"]
    assert alone.loss.item() == pytest.approx(weighted.item())
    assert codec_loss(one, two, 8000, lengths=[0], windows=(16, 32)).loss.item() == 0


def test_every_mel_band_hears_something():
    for size, bands in ((512, 32), (64, 40)):
        filters = mel_filters(8000, size, bands)
        assert filters.shape == (size // 2 + 1, bands)
        close(filters.sum(0), torch.ones(bands, dtype=torch.float64))


def test_it_learns_four_clips():
    steps = torch.arange(640) / 8000
    clips = torch.stack(
        [0.3 * torch.sin(6.2832 * f * steps) for f in (200.0, 450.0, 900.0, 1500.0)]
    )
    sizes = {"n_fft": 64, "frame_hop": 32, "strides": [2], "latent_size": 16}
    model = new_tokenizer(seed=0, hidden_size=48, **sizes)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(250):
        output = model.train()(clips, generator=generator)
        loss = codec_loss(output.audio_values, clips, 8000, windows=(64, 128))
        optimiser.zero_grad()
        loss.loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(loss.loss.item())
    assert losses[-1] < losses[0] / 3, (losses[0], losses[-1])


@pytest.mark.parametrize("only_errors", [True, False])
def test_transformers_is_as_loud_as_before_after_a_failure(only_errors, monkeypatch):
    logging = transformers.utils.logging
    root = logging.get_logger("transformers")
    monkeypatch.setattr(root, "level", logging.WARNING)  # whatever other tests have left
    before = logging.is_progress_bar_enabled(), logging.get_verbosity()
    with suppress(OSError), quiet_transformers(only_errors=only_errors):
        assert not logging.is_progress_bar_enabled()
        assert (logging.get_verbosity() == logging.ERROR) == only_errors
        raise OSError
    assert (logging.is_progress_bar_enabled(), logging.get_verbosity()) == before


def test_nan_is_no_silence_in_a_loss():
    wave = torch.randn(1, 600)
    terms = reconstruction_terms(wave * math.nan, wave, torch.tensor([600.0]), [64], 8000)
    assert terms["magnitude"].isnan()
    assert terms["log_magnitude"].isnan()
