"""The fused kernels against plain torch: on a GPU as they are, elsewhere in Triton's interpreter."""

import copy
import os

import pytest
import torch
import torch.nn.functional as F

if not torch.cuda.is_available():
    # Read when the kernels are first imported.
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="triton is not installed; it comes with torch for CUDA")

from burnish.lm import decoder as decoder_module, fused, fused_kernels, siamese_kernels
from burnish.lm.architecture import OWN, Architecture
from burnish.lm.decoder import Decoder, init_weights
from burnish.lm.model_input import ModelInput
from burnish.models.blocks import Topology
from burnish.models.blocks.topology import Norms, Streams

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ROUNDING = {
    torch.float32: 2e-6,
    torch.float16: 2**-11,
    torch.bfloat16: 2**-8 if DEVICE.type == "cuda" else 2**-7,
}
"""Relative error of a rounded number. float32 leaves room for the order of a sum; a GPU was seen
to be one last bit of bfloat16 off, and Triton's interpreter cuts it off where a GPU rounds."""


@pytest.fixture(autouse=True)
def use_kernels(monkeypatch):
    """The way a GPU takes, wherever this runs; float64 stays in plain torch as it does there."""

    def chosen(tensor):
        return None if tensor.dtype == torch.float64 else fused_kernels

    monkeypatch.setattr(fused, "_kernels", chosen)


def random(*shape, seed=0, dtype=torch.float32, scale=1.0):
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale
    return values.to(DEVICE, dtype).requires_grad_(True)


def exact(*tensors):
    """The same numbers in float64, as leaves of a graph of their own."""
    return [t.detach().double().requires_grad_(True) for t in tensors]


def assert_near(got, expected, dtype, *, times=1.2):
    """Within `times` roundings, in proportion to each number and to the typical one."""
    bound = times * ROUNDING[dtype]
    typical = float(expected.detach().abs().mean())
    torch.testing.assert_close(
        got.double(), expected.double(), rtol=bound, atol=bound * max(typical, 1e-3)
    )


def plain_norm(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


@pytest.mark.parametrize("size", [48, 576, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_add_norm_and_all_its_gradients(dtype, size):
    residual = random(7, size, seed=1)
    delta = random(7, size, seed=2, dtype=dtype)
    weight = random(size, seed=3, dtype=dtype)
    of_total, of_normed = random(7, size, seed=4), random(7, size, seed=5, dtype=dtype)
    total, normed = fused.add_norm(residual, delta, weight, 1e-5)
    assert total.dtype == torch.float32
    assert normed.dtype == dtype
    got = torch.autograd.grad((total, normed), (residual, delta, weight), (of_total, of_normed))
    assert [g.dtype for g in got] == [torch.float32, dtype, dtype]

    inputs = exact(residual, delta, weight)
    their_total = inputs[0] + inputs[1]
    theirs = their_total, plain_norm(their_total, inputs[2], 1e-5)
    expected = torch.autograd.grad(theirs, inputs, (of_total.double(), of_normed.double()))
    assert_near(total, theirs[0], torch.float32)
    assert_near(normed, theirs[1], dtype)
    assert_near(got[0], expected[0], torch.float32, times=2)
    assert_near(got[1], expected[1], dtype)
    assert_near(got[2], expected[2], dtype, times=2)


def test_a_gradient_that_reaches_one_output_alone():
    residual, delta, weight = random(5, 40), random(5, 40, seed=1), random(40, seed=2)
    total, normed = fused.add_norm(residual, delta, weight, 1e-5)
    got = torch.autograd.grad(total.sum(), (residual, delta), retain_graph=True)
    assert all(torch.equal(g, torch.ones_like(g)) for g in got)
    got = torch.autograd.grad(normed[:, 3].sum(), (residual, delta, weight))
    inputs = exact(residual, delta, weight)
    theirs = plain_norm(inputs[0] + inputs[1], inputs[2], 1e-5)
    for ours, their in zip(got, torch.autograd.grad(theirs[:, 3].sum(), inputs), strict=True):
        assert_near(ours, their, torch.float32, times=4)


def test_a_frozen_weight_costs_no_sums(monkeypatch):
    asked = []
    real = fused_kernels.add_norm_backward

    def noting(*arguments, needs_weight, **settings):
        asked.append(needs_weight)
        return real(*arguments, needs_weight=needs_weight, **settings)

    monkeypatch.setattr(fused_kernels, "add_norm_backward", noting)
    residual, delta, weight = random(3, 48), random(3, 48, seed=1), random(48, seed=2)
    for frozen in (False, True):
        of = torch.autograd.grad(
            fused.add_norm(residual, delta, weight.detach() if frozen else weight, 1e-5)[1].sum(),
            (residual, delta),
        )
        assert torch.equal(*of)
    assert asked == [True, False]


def plainly(x, y, update, weights, share):
    """Both streams by their equations."""
    x, y = x + share * update, y + update
    x = plain_norm(x, weights[0], 1e-5)
    return x, y, plain_norm(x + plain_norm(y, weights[1], 1e-5), weights[2], 1e-5)


def siamese_inputs(dtype, size, rows=7):
    x, update = (random(rows, size, seed=i, dtype=dtype) for i in (1, 2))
    weights = [random(size, seed=i, dtype=dtype) for i in (4, 5, 6)]
    return x, random(rows, size, seed=3), update, *weights


def read_both(x, y, update, *weights, share=0.4):
    streams, out = fused.read_both(Streams(x, y, update, share), Norms(*weights), 1e-5)
    return streams.x, streams.y, out


@pytest.mark.parametrize("size", [48, 576, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_both_streams_and_all_their_gradients(dtype, size):
    inputs = siamese_inputs(dtype, size)
    outs = read_both(*inputs)
    assert [out.dtype for out in outs] == [dtype, torch.float32, dtype]
    of_outs = [random(7, size, seed=9 + i, dtype=out.dtype) for i, out in enumerate(outs)]
    got = torch.autograd.grad(outs, inputs, of_outs)
    assert [g.dtype for g in got] == [one.dtype for one in inputs]

    x, y, update, *weights = exact(*inputs)
    theirs = plainly(x, y, update, weights, 0.4)
    expected = torch.autograd.grad(theirs, (x, y, update, *weights), exact(*of_outs))
    assert_near(outs[0], theirs[0], dtype)
    assert_near(outs[1], theirs[1], torch.float32)
    # X is rounded before it is read, so that its error is in what is read and in every gradient.
    for ours, their in zip((outs[2], *got), (theirs[2], *expected), strict=True):
        assert float((ours - their).norm() / their.norm()) < 2 * ROUNDING[dtype]


def relative(ours, theirs):
    return float((ours.double() - theirs).norm() / theirs.norm())


@pytest.mark.parametrize("large", [1.0, 1e3, 1e5])
@pytest.mark.parametrize("case", ["apart", "cancelling", "x vanishes"])
def test_gradients_of_long_and_of_cancelling_streams_in_types_of_autocast(large, case):
    """Float32 weights and streams, an update in bfloat16, as a training under autocast has them."""
    update = random(7, 576, seed=2, dtype=torch.bfloat16)
    weights = [random(576, seed=i).detach().abs().add(0.5).requires_grad_() for i in (4, 5, 6)]
    y = (large * random(7, 576, seed=3).detach()).requires_grad_()
    x = random(7, 576, seed=1)
    with torch.no_grad():
        if case == "cancelling":  # X' is nearly what y_norm takes off
            b = plain_norm(y + update.float(), weights[1], 1e-5)
            x.copy_((-b + 0.01 * x) / weights[0] - 0.4 * update.float())
        elif case == "x vanishes":
            x.copy_(1e-2 * x - 0.4 * update.float())
    inputs = (x, y, update, *weights)
    of_outs = [random(7, 576, seed=9 + i) for i in range(3)]
    got = torch.autograd.grad(read_both(*inputs), inputs, of_outs)
    exactly = exact(*inputs)
    theirs = plainly(*exactly[:3], exactly[3:], 0.4)
    expected = torch.autograd.grad(theirs, exactly, exact(*of_outs))
    for place, (ours, their) in enumerate(zip(got, expected, strict=True)):
        assert relative(ours, their) < (8e-3 if place == 2 else 1e-4), place


@pytest.mark.parametrize("programs", [1, 3, 1000])
def test_gradients_of_three_weights_are_whole_however_rows_are_shared(monkeypatch, programs):
    monkeypatch.setattr(siamese_kernels, "PROGRAMS", programs)
    monkeypatch.setattr(fused_kernels, "TILE", 128)
    inputs = siamese_inputs(torch.float32, 48, rows=37)
    got = torch.autograd.grad(read_both(*inputs)[2].square().sum(), inputs)
    x, y, update, *weights = exact(*inputs)
    theirs = plainly(x, y, update, weights, 0.4)[2]
    expected = torch.autograd.grad(theirs.square().sum(), (x, y, update, *weights))
    for ours, their in zip(got, expected, strict=True):
        assert_near(ours, their, torch.float32, times=8)


def test_fewer_streams_or_norms_are_read_one_by_one():
    x, y, update, *weights = siamese_inputs(torch.float32, 48)
    whole = Norms(*weights)
    for streams in (Streams(None, y, update), Streams(x, None, update), Streams(x, y)):
        assert fused.read_both(streams, whole, 1e-5) is None
    without = Norms(x_norm=None, y_norm=weights[1], x_scale=weights[0])
    assert fused.read_both(Streams(x, y, update), without, 1e-5) is None


@pytest.mark.parametrize("programs", [1, 3, 1000])
def test_the_weight_gradient_is_whole_however_rows_are_shared(monkeypatch, programs):
    monkeypatch.setattr(fused_kernels, "PROGRAMS", programs)
    monkeypatch.setattr(fused_kernels, "TILE", 128)
    x, weight = random(37, 48), random(48, seed=1)
    got = torch.autograd.grad(fused.norm(x, weight, 1e-5).square().sum(), (x, weight))
    inputs = exact(x, weight)
    expected = torch.autograd.grad(plain_norm(*inputs, 1e-5).square().sum(), inputs)
    for ours, their in zip(got, expected, strict=True):
        assert_near(ours, their, torch.float32, times=8)


@pytest.mark.parametrize("size", [24, 64, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_heads_are_normed_in_their_own_type(dtype, size):
    x = random(2, 3, 5, size, dtype=dtype)
    weight = random(size, seed=1, dtype=dtype)
    of_out = random(2, 3, 5, size, seed=2, dtype=dtype)
    out = fused.norm(x, weight, 1e-6)
    assert out.dtype == dtype
    inputs = exact(x, weight)
    theirs = plain_norm(*inputs, 1e-6)
    assert_near(out, theirs, dtype)
    expected = torch.autograd.grad(theirs, inputs, of_out.double())
    for ours, their in zip(torch.autograd.grad(out, (x, weight), of_out), expected, strict=True):
        assert_near(ours, their, dtype, times=4)


def rotation_of(rows, length, size, dtype):
    angles = random(rows, 1, length, size // 2, seed=9, scale=3.0).detach()
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    return fused.SignedRotation(torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))


@pytest.mark.parametrize("size", [24, 64, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotation_and_its_gradient(dtype, size):
    query = random(2, 5, 6, size, seed=1, dtype=dtype)
    key = random(2, 5, 3, size, seed=2, dtype=dtype)
    rotation = rotation_of(2, 5, size, dtype)
    turned = fused.rotate(query, key, rotation)
    assert [t.shape for t in turned] == [(2, 6, 5, size), (2, 3, 5, size)]
    assert all(t.transpose(1, 2).is_contiguous() for t in turned)
    # What attention hands back may lie heads first.
    of = [random(*t.shape, seed=i, dtype=dtype).detach() for i, t in enumerate(turned)]
    got = torch.autograd.grad(turned, (query, key), of)

    inputs = exact(query, key)
    wide = fused.SignedRotation(*(t.double() for t in rotation))
    theirs = [fused._turned(t.transpose(1, 2), wide) for t in inputs]
    expected = torch.autograd.grad(theirs, inputs, [o.double() for o in of])
    for ours, their in zip((*turned, *got), (*theirs, *expected), strict=True):
        assert ours.dtype == dtype
        assert_near(ours, their, dtype)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size"), [(9, 3, 64), (4, 1, 16), (2, 2, 48), (12, 4, 8)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotated_keys_and_values_for_every_query_head(dtype, heads, kv_heads, size):
    query = random(2, 3, heads, size, seed=1, dtype=dtype)
    key, value = (random(2, 3, kv_heads, size, seed=i, dtype=dtype) for i in (2, 3))
    rotation = rotation_of(2, 3, size, dtype)
    inputs = (query, key, value)
    ours = fused.rotate_and_repeat(*inputs, rotation)
    assert [t.shape for t in ours] == [(2, heads, 3, size)] * 3
    of = [random(*t.shape, seed=i, dtype=dtype).detach() for i, t in enumerate(ours)]
    gradients = torch.autograd.grad(ours, inputs, of)

    wide = fused.SignedRotation(*(t.double() for t in rotation))
    precise = exact(*inputs)
    theirs = fused.rotate_and_repeat(*precise, wide)
    expected = torch.autograd.grad(theirs, precise, [o.double() for o in of])
    for got, their in zip((*ours, *gradients), (*theirs, *expected), strict=True):
        assert got.dtype == dtype
        assert_near(got, their, dtype)
    copies = value.transpose(1, 2).repeat_interleave(heads // kv_heads, dim=1)
    assert torch.equal(ours[2], copies)


def test_the_rotation_backwards_undoes_the_rotation():
    query, key = random(1, 4, 3, 64), random(1, 4, 1, 64, seed=1)
    rotation = rotation_of(1, 4, 64, torch.float32)
    heads, keys = (query.detach(), key.detach()), key.shape[2]
    there = fused_kernels.rotate(heads, *rotation, key_heads=keys, is_backward=False)
    back = fused_kernels.rotate(there, *rotation, key_heads=keys, is_backward=True)
    assert (there[0] - query).abs().max() > 0.5
    torch.testing.assert_close(back, (query.detach(), key.detach()), rtol=0, atol=2e-6)


@pytest.mark.parametrize("shape", [(3, 48), (2, 1536), (5, 1000), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gated_and_its_gradients(dtype, shape):
    gate = random(*shape, seed=1, dtype=dtype, scale=3.0)
    up = random(*shape, seed=2, dtype=dtype)
    of_out = random(*shape, seed=3, dtype=dtype)
    out = fused.gated(gate, up)
    got = torch.autograd.grad(out, (gate, up), of_out)
    inputs = exact(gate, up)
    theirs = F.silu(inputs[0]) * inputs[1]
    expected = torch.autograd.grad(theirs, inputs, of_out.double())
    for ours, their in zip((out, *got), (theirs, *expected), strict=True):
        assert ours.dtype == dtype
        assert_near(ours, their, dtype, times=2.2)


def test_gates_far_from_zero_neither_overflow_nor_vanish():
    gate = torch.tensor([-200.0, -90.0, 0.0, 90.0, 200.0], device=DEVICE, requires_grad=True)
    out = fused.gated(gate, torch.full_like(gate, 2.0))
    assert out.tolist() == [0.0, 0.0, 0.0, 180.0, 400.0]
    (of_gate,) = torch.autograd.grad(out.sum(), gate)
    assert of_gate.tolist() == pytest.approx([0.0, 0.0, 1.0, 2.0, 2.0], abs=1e-30)


def test_tensors_that_lie_apart_give_the_same_numbers():
    wide = random(4, 96).detach()
    apart, close = wide[:, ::2], wide[:, ::2].contiguous()
    assert not apart.is_contiguous()
    weight = random(48, seed=1).detach()
    assert torch.equal(fused.gated(apart, apart), fused.gated(close, close))
    ours = fused.add_norm(apart, apart, weight, 1e-5)
    for a, b in zip(ours, fused.add_norm(close, close, weight, 1e-5), strict=True):
        assert torch.equal(a, b)
    rotation = rotation_of(2, 2, 24, torch.float32)
    heads = close.view(2, 2, 2, 24)
    across = heads.transpose(2, 3).contiguous().transpose(2, 3)
    assert across.stride(-1) != 1
    ours = fused.rotate(across, across, rotation)
    theirs = fused.rotate(heads, heads, rotation)
    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[1], theirs[1])


def test_no_tokens_at_all():
    nothing, weight = random(0, 48), random(48)
    total, normed = fused.add_norm(nothing, nothing, weight, 1e-5)
    out = fused.gated(normed, total)
    of_weight, of_nothing = torch.autograd.grad(out.sum(), (weight, nothing))
    assert out.shape == of_nothing.shape == (0, 48)
    assert of_weight.tolist() == [0.0] * 48


def architecture(**changes):
    values = {
        "family": "llama",
        "vocab_size": 61,
        "hidden_size": 48,
        "intermediate_size": 72,
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 24,
        "norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "max_positions": 2048,
    }
    return Architecture(**{**values, **changes})


FAMILIES = {
    "llama": {},
    "qwen2": {"family": "qwen2", "qkv_bias": True, "tied_head": True},
    "qwen3": {"family": "qwen3", "qk_norm": True, "head_dim": 32},
    "siamese": {"family": OWN, "topology": Topology("siamese_post_pre")},
    "siamese_hybrid": {
        "family": OWN,
        "topology": Topology("siamese_hybrid_pre"),
        "qk_norm": True,
        "v_norm": True,
    },
}


def scores_and_gradients(decoder):
    ids = torch.randint(0, 61, (2, 6), generator=torch.Generator().manual_seed(4)).to(DEVICE)
    positions = torch.arange(6, device=DEVICE).expand(2, 6)
    mask = torch.ones(6, 6, dtype=torch.bool, device=DEVICE).tril()
    mask[4:, 2:4] = False
    logits = decoder.logits(decoder(ModelInput(ids, positions, mask.expand(2, 6, 6))))
    scores = logits.double().log_softmax(-1)[..., 7]
    scores.sum().backward()
    return scores.detach(), {name: p.grad for name, p in decoder.named_parameters()}


@pytest.mark.parametrize("changes", FAMILIES.values(), ids=FAMILIES)
def test_a_whole_decoder_on_the_kernels_is_the_plain_one(changes):
    decoder = Decoder(architecture(**changes))
    init_weights(decoder, seed=3, std=0.3)
    decoder = decoder.to(DEVICE)
    plain = copy.deepcopy(decoder).double()  # float64 never takes the kernels
    scores, gradients = scores_and_gradients(decoder)
    expected, exact_gradients = scores_and_gradients(plain)
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-4)
    for name, gradient in gradients.items():
        difference = (gradient - exact_gradients[name]).norm()
        # Of a key's bias nothing is left but rounding: it moves all scores of a query alike.
        assert difference <= 1e-4 * exact_gradients[name].norm() + 1e-5, name


def test_half_precision_computes_one_thing_with_and_without_kernels(monkeypatch):
    decoder = Decoder(architecture())
    init_weights(decoder, seed=3, std=0.3)
    decoder = decoder.to(DEVICE, torch.float16)
    plain = copy.deepcopy(decoder)
    scores, gradients = scores_and_gradients(decoder)
    monkeypatch.setattr(fused, "_kernels", lambda _: None)
    expected, plain_gradients = scores_and_gradients(plain)
    assert float((scores - expected).abs().mean()) < 0.004
    for name, gradient in gradients.items():
        difference = (gradient - plain_gradients[name]).norm()
        assert difference < 0.005 * plain_gradients[name].norm(), name


@pytest.mark.skipif(DEVICE.type != "cuda", reason="flash attention with shared keys is a GPU's")
def test_flash_attention_reads_shared_keys_where_they_are(monkeypatch):
    query = random(2, 6, 300, 64, seed=1, dtype=torch.bfloat16)
    key, value = (random(2, 2, 300, 64, seed=i, dtype=torch.bfloat16) for i in (2, 3))
    assert decoder_module._flash_shares_keys(query, key, value)
    found = []
    for can in (True, False):
        monkeypatch.setattr(decoder_module, "_flash_shares_keys", lambda *_, can=can: can)
        out = decoder_module._attend(query, key, value, None, is_sampling=False)
        found.append((out, *torch.autograd.grad(out.float().square().sum(), (query, key, value))))
    for shared, repeated in zip(*found, strict=True):
        assert float((shared - repeated).norm() / repeated.norm()) < 0.01


def test_what_the_kernels_keep_for_the_backward_pass():
    kept = {}

    def note(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    residual = random(16, 64)
    delta, gate, up = (random(16, 64, seed=i, dtype=torch.bfloat16) for i in (1, 2, 3))
    weight = random(64, seed=4, dtype=torch.bfloat16)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        outs = fused.add_norm(residual, delta, weight, 1e-5)
    kept.pop(weight.data_ptr())
    assert sorted(kept.values()) == [16 * 4, 16 * 64 * 4]
    kept.clear()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        outs = (*outs, fused.gated(gate, up))
    assert set(kept) == {gate.data_ptr(), up.data_ptr()}
    assert all(out.requires_grad for out in outs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_first_norm_has_nothing_to_add(dtype):
    embedded = random(5, 96, seed=1, dtype=dtype)
    weight = random(96, seed=2, dtype=dtype)
    total, normed = fused.add_norm(embedded, None, weight, 1e-6)
    assert torch.equal(total, embedded.float())
    got = torch.autograd.grad((3 * total).sum() + normed.float().sum(), (embedded, weight))
    inputs = exact(embedded, weight)
    theirs = plain_norm(*inputs, 1e-6)
    expected = torch.autograd.grad((3 * inputs[0]).sum() + theirs.sum(), inputs)
    assert_near(normed, theirs, dtype)
    for ours, their in zip(got, expected, strict=True):
        assert_near(ours, their, dtype, times=4)


def test_frozen_weights_of_both_streams_cost_no_sums(monkeypatch):
    asked = []
    real = siamese_kernels.read_both_backward

    def noting(*arguments, needs_weights):
        asked.append(needs_weights)
        return real(*arguments, needs_weights=needs_weights)

    monkeypatch.setattr(siamese_kernels, "read_both_backward", noting)
    x, y, update, *weights = siamese_inputs(torch.float32, 48)
    with_weights = torch.autograd.grad(read_both(x, y, update, *weights)[2].sum(), (x, y, update))
    frozen = [w.detach() for w in weights]
    without = torch.autograd.grad(read_both(x, y, update, *frozen)[2].sum(), (x, y, update))
    assert all(map(torch.equal, with_weights, without))
    assert asked == [True, False]


def test_both_streams_keep_no_sums_for_the_backward_pass():
    kept = []

    def note(tensor):
        kept.append(tensor.numel() * tensor.element_size())
        return tensor

    inputs = siamese_inputs(torch.bfloat16, 64, rows=16)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        read_both(*inputs)
    rows, row = 16, 16 * 64
    assert sorted(kept) == sorted([2 * row, 4 * row, 2 * row, 3 * 4 * rows, *[2 * 64] * 3])
