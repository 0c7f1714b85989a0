"""Vision and diffusion transformers over the same stack."""

from __future__ import annotations

import pytest
import torch
from lab.siamesenorm.vision import (
    DiffusionTransformer,
    VisionTransformer,
    draw_shapes,
    flow_loss,
    sample_images,
)

from burnish.models.blocks.topology import Streams
from burnish.models.siamesenorm import siamese_dit_block

SMALL = {"image": 8, "patch": 4, "size": 16, "layers": 2, "heads": 2}


def test_drop_path_takes_an_update_from_both_streams_or_from_none():
    torch.manual_seed(3)
    model = VisionTransformer(**SMALL, drop_path=0.5).train()
    seen: list[tuple[torch.Tensor, ...]] = []
    stays: list[torch.Tensor] = []

    def watch(index: int, before: Streams, after: Streams, updates: list[torch.Tensor]) -> None:
        seen.append(tuple(updates))
        stays.append((after.y == before.y).flatten(1).all(1))

    model.stack(torch.randn(64, 3, 16), watch=watch)
    assert all(bool((update.abs().sum((1, 2)) > 0).all()) for update in seen[0])  # rate 0
    dropped = seen[1][0].abs().sum((1, 2)) == 0
    assert 10 < int(dropped.sum()) < 54
    # Y moves by the two updates alone: it stays where both were taken away.
    both = dropped & (seen[1][1].abs().sum((1, 2)) == 0)
    assert int(both.sum()) > 0
    assert stays[1].tolist() == both.tolist()
    model.eval()
    seen.clear()
    model.stack(torch.randn(64, 3, 16), watch=watch)
    assert not bool((seen[1][0].abs().sum((1, 2)) == 0).any())


def test_a_new_diffusion_transformer_leaves_y_and_its_block_is_the_function():
    torch.manual_seed(4)
    model = DiffusionTransformer(**SMALL)
    h, condition = torch.randn(2, 4, 16), torch.randn(2, 16)
    streams = []
    model.stack(
        h, watch=lambda i, before, after, updates: streams.append(after), condition=condition
    )
    assert torch.equal(streams[-1].y, h)
    block = model.stack[1]
    for part in (block.self_attn, block.mlp):
        torch.nn.init.normal_(part.modulation.weight, std=0.3)
        torch.nn.init.normal_(part.modulation.bias, std=0.3)
    weight = torch.cat((block.self_attn.modulation.weight, block.mlp.modulation.weight))
    bias = torch.cat((block.self_attn.modulation.bias, block.mlp.modulation.bias))
    x, y, _ = block(h, 2 * h, h.dtype, {"condition": condition})
    expected = siamese_dit_block(
        h, 2 * h, condition, block.self_attn.inner, block.mlp.inner, weight, bias, 1, 1e-6
    )
    torch.testing.assert_close(x, expected.X)
    torch.testing.assert_close(y, expected.Y)


def test_flow_matching_learns_shapes():
    torch.manual_seed(5)
    model = DiffusionTransformer(**SMALL | {"size": 32})
    generator = torch.Generator().manual_seed(6)
    images, labels = draw_shapes(32, 8, generator)
    assert images.shape == (32, 3, 8, 8)
    assert float(images.min()) == -1
    assert float(images.max()) <= 1
    noise, tau = torch.randn(images.shape, generator=generator), torch.rand(32, generator=generator)
    exact = flow_loss(lambda x, t, c: images - noise, images, labels, noise, tau)
    assert float(exact.loss) == 0
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3)
    first = float(flow_loss(model, images, labels, noise, tau).loss.detach())
    for _ in range(25):
        optimiser.zero_grad()
        flow_loss(model, images, labels, noise, tau).loss.backward()
        optimiser.step()
    assert float(flow_loss(model, images, labels, noise, tau).loss.detach()) < 0.8 * first
    made = sample_images(model, labels[:4], noise[:4], steps=4)
    assert made.shape == (4, 3, 8, 8)
    assert bool(made.isfinite().all())
    straight = sample_images(lambda x, t, c: images - noise, labels, noise, steps=3)
    torch.testing.assert_close(straight, images)


def test_flow_matching_has_its_values():
    model = DiffusionTransformer(image=4, patch=2, size=8, layers=1, heads=2)
    with torch.no_grad():
        for number, weight in enumerate(model.parameters()):
            values = 0.3 * (torch.arange(weight.numel()) * 0.37 + number).sin()
            weight.copy_(values.view(weight.shape))
        # The numbers below are those of cosines before sines.
        columns = model.time[0].weight
        columns.copy_(columns.roll(4, dims=1))
    images = (torch.arange(96) * 0.11).cos().view(2, 3, 4, 4)
    noise = (torch.arange(96) * 0.23).sin().view(2, 3, 4, 4)
    labels, tau = torch.tensor([0, 2]), torch.tensor([0.2, 0.7])
    with torch.no_grad():
        rows = flow_loss(model, images, labels, noise, tau).rows
        made = sample_images(model, labels, noise, steps=3).flatten()[::17]
    assert rows.tolist() == pytest.approx([1.137529, 1.205509], abs=1e-5)
    expected = [0.102409, -0.340756, 1.386457, -0.914151, -0.776963, -0.283053]
    assert made.tolist() == pytest.approx(expected, abs=1e-5)
    # The same equations by hand, of a velocity in one line.
    at = tau.view(-1, 1, 1, 1)
    found = flow_loss(lambda x, t, c: 0.5 * x, images, labels, noise, tau).rows
    error = 0.5 * ((1 - at) * noise + at * images) - (images - noise)
    assert torch.equal(found, error.square().flatten(1).mean(1))
    moved = noise
    for step in range(7):
        moved = moved + (moved + step / 7) / 7
    by_steps = sample_images(lambda x, t, c: x + t.view(-1, 1, 1, 1), labels, noise, steps=7)
    torch.testing.assert_close(by_steps, moved)
