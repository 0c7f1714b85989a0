"""The functions of the audio tokenizer against independent numpy, and at their edges."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from burnish.errors import ArgumentError
from burnish.models.audio_tokenizer import (
    channel_normalise,
    euler_sample,
    flow_pair,
    frechet_distance,
    guided_velocity,
    log_spectral_distance,
    patchify_latents,
    perturb_latents,
    rq_codes,
    rq_mtp_loss,
    si_sdr,
)

RNG = np.random.default_rng(7)
Z = RNG.normal(2.0, 3.0, (3, 5, 8))


def test_frames_are_normalised_over_channels():
    expected = (Z - Z.mean(-1, keepdims=True)) / (Z.std(-1, keepdims=True) + 1e-5)
    found = channel_normalise(Z, eps=1e-5)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    np.testing.assert_allclose(found.mean(-1), 0, atol=1e-12)
    std = Z.std(-1)
    np.testing.assert_allclose(found.square().sum(-1), 8 * (std / (std + 1e-5)) ** 2, rtol=1e-12)
    np.testing.assert_allclose(channel_normalise(Z[0, 0]), found[0, 0], atol=1e-12)
    moved = channel_normalise(4 * Z - 7, eps=0.0)
    np.testing.assert_allclose(moved, channel_normalise(Z, eps=0.0), atol=1e-12)


@given(
    frame=st.lists(st.integers(-50, 50), min_size=2, max_size=9).filter(lambda x: len({*x}) > 1),
    scale=st.floats(1e-3, 1e3),
    shift=st.floats(-100, 100),
)
def test_scale_and_shift_of_a_frame_do_not_matter(frame, scale, shift):
    z = np.array(frame, float)
    found = channel_normalise(scale * z + shift, eps=0.0)
    np.testing.assert_allclose(found, channel_normalise(z, eps=0.0), atol=1e-6)
    turned = channel_normalise(shift - scale * z, eps=0.0)
    np.testing.assert_allclose(turned, -found, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e20])
def test_frames_of_any_size_are_normalised(scale):
    z = torch.tensor(scale * Z, dtype=torch.float32, requires_grad=True)
    found = channel_normalise(z, eps=0.0)
    torch.testing.assert_close(found, channel_normalise(Z, eps=0.0).float(), rtol=1e-4, atol=1e-4)
    (found * torch.arange(8)).sum().backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None
    # The gradient of what does not depend on the scale falls with it.
    base = torch.tensor(Z, requires_grad=True)
    (channel_normalise(base, eps=0.0) * torch.arange(8)).sum().backward()  # type: ignore[no-untyped-call]
    assert base.grad is not None
    torch.testing.assert_close(z.grad.double() * scale, base.grad, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("eps", [1e-5, 0.0])
def test_a_constant_frame_is_zero_and_has_a_finite_gradient(eps):
    z = torch.tensor([[0.1, 0.1, 0.1], [1.0, 2.0, 4.0]], requires_grad=True)
    found = channel_normalise(z, eps=eps)
    assert found[0].tolist() == [0.0, 0.0, 0.0]
    found.square().sum().backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None
    assert bool(z.grad.isfinite().all())


def test_noise_has_one_strength_a_sequence():
    noise = RNG.normal(size=Z.shape)
    alpha = np.array([0.0, 0.5, -1.0])
    found = perturb_latents(Z, alpha, noise)
    np.testing.assert_allclose(found, Z + alpha[:, None, None] * noise, atol=1e-12)
    np.testing.assert_allclose(found, perturb_latents(Z, alpha[:, None, None], noise))
    np.testing.assert_allclose(perturb_latents(Z[0], 0.3, noise[0]), Z[0] + 0.3 * noise[0])


def test_codes_are_the_nearest_by_angle():
    projection, codebook = RNG.normal(size=(8, 4)), RNG.normal(size=(11, 4))
    projected = Z @ projection
    cosine = np.einsum("btc,vc->btv", projected, codebook) / (
        np.linalg.norm(projected, axis=-1)[..., None] * np.linalg.norm(codebook, axis=-1)
    )
    found = rq_codes(Z, projection, codebook)
    assert found.dtype == torch.int64
    assert found.tolist() == cosine.argmax(-1).tolist()
    scaled = codebook * RNG.uniform(0.1, 9, (11, 1))
    assert rq_codes(1e-200 * Z, projection, scaled).tolist() == found.tolist()


def test_the_first_of_equal_codes_is_taken():
    base = RNG.normal(size=(7, 16))
    codebook = np.concatenate([base, 3 * base, base])
    found = rq_codes(RNG.normal(size=(40, 16)), np.eye(16), codebook)
    assert int(found.max()) < 7
    assert rq_codes([[0.0, 0.0]], np.eye(2), [[-1, 0], [1, 0]]).tolist() == [0]


def mtp_by_hand(logits: Any, codes: Any, valid: Any) -> list[float]:
    heads = []
    for k in range(len(logits)):
        nll = [
            math.log(np.exp(logits[k, t]).sum()) - logits[k, t, codes[t + k + 1]]
            for t in range(len(codes) - k - 1)
            if valid[t] and valid[t + k + 1]
        ]
        heads.append(float(np.mean(nll)) if nll else 0.0)
    return heads


def test_each_head_predicts_one_frame_further():
    logits, codes = RNG.normal(size=(3, 6, 5)), RNG.integers(0, 5, 6)
    for valid in ([1] * 6, [1, 1, 0, 1, 1, 1], [1, 1, 1, 1, 0, 0], [0] * 6):
        found = rq_mtp_loss(logits, codes, valid)
        expected = mtp_by_hand(logits, codes, valid)
        np.testing.assert_allclose(found.per_head, expected, atol=1e-12)
        assert found.loss.item() == pytest.approx(sum(expected))
    assert found._fields == ("loss", "per_head")
    both = rq_mtp_loss(np.stack([logits, logits], 1), np.stack([codes, codes]))
    np.testing.assert_allclose(both.per_head, mtp_by_hand(logits, codes, [1] * 6), atol=1e-12)


@pytest.mark.parametrize("frames", [1, 2, 3])
def test_a_sequence_too_short_for_a_head_costs_nothing_there(frames):
    logits = torch.zeros(3, frames, 4, requires_grad=True)
    found = rq_mtp_loss(logits, [1] * frames, [1] * frames)
    expected = [math.log(4) if k + 1 < frames else 0.0 for k in range(3)]
    assert found.per_head.tolist() == pytest.approx(expected)
    found.loss.backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())


def test_what_stands_at_padded_frames_is_not_looked_at():
    logits = torch.zeros(1, 3, 4)
    logits[0, 2] = math.nan
    assert rq_mtp_loss(logits, [1, 2, -100], [1, 1, 0]).loss.item() == pytest.approx(math.log(4))
    with pytest.raises(ArgumentError, match=r"codes: .* from 0 to 3"):
        rq_mtp_loss(torch.zeros(1, 3, 4), [1, 2, 4], [1, 1, 1])


def test_patches_join_frames_and_drop_the_tail():
    found = patchify_latents(Z, P=2)
    assert found.shape == (3, 2, 16)
    np.testing.assert_array_equal(found[:, 1, 8:], Z[:, 3])
    assert patchify_latents(Z[0], P=6).shape == (0, 48)


def test_flow_pairs_lie_on_the_line():
    noise = RNG.normal(size=Z.shape)
    for tau in (0.3, RNG.uniform(size=3), RNG.uniform(size=(3, 5)), RNG.uniform(size=(3, 5, 1))):
        wide = np.reshape(tau, (*np.shape(tau), *[1] * (3 - np.ndim(tau))))
        pair = flow_pair(noise, Z, tau)
        np.testing.assert_allclose(pair.x_tau, (1 - wide) * noise + wide * Z, atol=1e-12)
        np.testing.assert_allclose(pair.velocity, Z - noise)
    assert pair._fields == ("x_tau", "velocity")
    assert torch.equal(flow_pair(noise, Z, 1.0).x_tau, torch.from_numpy(Z))


def test_guidance_and_eulers_method():
    a, b = Z[0], Z[1]
    np.testing.assert_allclose(guided_velocity(a, b, 1.3), b + 1.3 * (a - b))
    np.testing.assert_allclose(guided_velocity(a, b, 1.0), a)
    np.testing.assert_allclose(guided_velocity(a, b, 0.0), b)
    # The velocity of a straight line brings noise to the data in any number of steps.
    for steps in (1, 7):
        arrived = euler_sample(lambda x, tau: torch.from_numpy(b - a), a, steps=steps)
        np.testing.assert_allclose(arrived, b, atol=1e-12)
    times: list[float] = []
    euler_sample(lambda x, tau: (times.append(tau), x)[1], a, steps=4)  # type: ignore[func-returns-value]
    assert times == [0.0, 0.25, 0.5, 0.75]
    with pytest.raises(ArgumentError, match="velocity: what it gave"):
        euler_sample(lambda x, tau: x[0], a, steps=4)


def test_si_sdr_is_that_of_numpy_and_of_any_scale():
    reference, noise = RNG.normal(size=(2, 400)), RNG.normal(size=(2, 400))
    estimate = 0.7 * reference + 0.2 * noise + 5
    e = estimate - estimate.mean(-1, keepdims=True)
    r = reference - reference.mean(-1, keepdims=True)
    target = (e * r).sum(-1, keepdims=True) / (r * r).sum(-1, keepdims=True) * r
    expected = 10 * np.log10((target**2).sum(-1) / ((e - target) ** 2).sum(-1))
    np.testing.assert_allclose(si_sdr(estimate, reference), expected, atol=1e-9)
    np.testing.assert_allclose(si_sdr(1e-170 * estimate, -1e90 * reference), expected, atol=1e-9)


def test_si_sdr_at_its_ends():
    reference = [0.5, -0.25, 0.125]
    assert si_sdr(reference, reference).item() == math.inf
    assert si_sdr([0.1, 0.1, 0.1], reference).item() == -math.inf
    with pytest.raises(ArgumentError, match="reference: got a silent signal"):
        si_sdr(reference, [0.1, 0.1, 0.1])


def test_log_spectral_distance_is_that_of_numpy():
    a, b = RNG.uniform(0, 2, (6, 9)), RNG.uniform(0, 2, (6, 9))
    a[0, 0] = 0
    difference = 20 * np.log10(a + 1e-3) - 20 * np.log10(b + 1e-3)
    expected = np.sqrt((difference**2).mean(1)).mean()
    assert log_spectral_distance(a, b, eps=1e-3).item() == pytest.approx(expected)
    assert log_spectral_distance(a, a, eps=1e-3).item() == 0
    with pytest.raises(ArgumentError, match="eps: got 0 with a magnitude of 0 in a"):
        log_spectral_distance(a, b, eps=0)


def test_frechet_distance_is_that_of_a_matrix_root():
    one, two = RNG.normal(size=(50, 4)), 2 * RNG.normal(size=(50, 4)) + 1
    cov1, cov2 = np.cov(one.T), np.cov(two.T)
    values = np.linalg.eigvals(cov1 @ cov2).real
    mu1, mu2 = one.mean(0), two.mean(0)
    expected = ((mu1 - mu2) ** 2).sum() + np.trace(cov1 + cov2) - 2 * np.sqrt(values).sum()
    found = frechet_distance(mu1, cov1, mu2, cov2)
    assert found.item() == pytest.approx(expected)
    assert frechet_distance(mu2, cov2, mu1, cov1).item() == pytest.approx(expected)
    assert frechet_distance(mu1, cov1, mu1, cov1).item() == pytest.approx(0, abs=1e-10)
    singular = np.diag([1.0, 0.0, 0.0, 0.0])
    assert frechet_distance(mu1, singular, mu1, 4 * singular).item() == pytest.approx(1)


def test_eulers_method_refuses_nan_and_leaves_its_noise():
    with pytest.raises(ArgumentError, match="velocity: the sample"):
        euler_sample(lambda x, tau: x * math.nan, [1.0], 2)
    noise = torch.ones(3)
    made = euler_sample(lambda x, tau: x.mul_(2).double(), noise, 2)
    assert noise.tolist() == [1.0, 1.0, 1.0]
    assert made.dtype == torch.float32
