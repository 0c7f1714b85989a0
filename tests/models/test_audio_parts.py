"""What is learned on latents: the representation encoder, the flow head."""

import json

import pytest
import torch
import transformers

from burnish.errors import UserError
from burnish.models.audio_tokenizer import (
    draw_flow,
    new_generator,
    new_representation,
    open_generator,
    rq_mtp_loss,
    spelled,
)
from burnish.models.audio_tokenizer.objective import normalise_frames
from burnish.models.blocks.flow import FlowHead, RegressionHead

Z = torch.randn(3, 7, 6, generator=torch.Generator().manual_seed(0))
SMALL = {"latent_size": 6, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


def encoder() -> torch.nn.Module:
    return new_representation(seed=1, codes=8, code_size=4, **SMALL)


@pytest.mark.parametrize("topology", ["pre", "siamese_post_pre"])
def test_later_frames_change_no_earlier_representation(topology):
    model = new_representation(norm_topology=topology, codes=8, **SMALL).eval()
    changed = Z.clone()
    changed[:, 4:] += 1
    torch.testing.assert_close(model(Z)[:, :4], model(changed)[:, :4])
    assert not torch.allclose(model(Z)[:, 4:], model(changed)[:, 4:])


def test_the_prediction_loss_is_that_of_the_public_function():
    model = encoder()
    mask = torch.ones(3, 7, dtype=torch.bool)
    mask[0, 4:] = False
    model.standardise(Z.reshape(-1, 6))
    logits = torch.stack([head(model(Z)) for head in model.heads])
    expected = rq_mtp_loss(logits, model.codes(Z), mask)
    found = model.prediction_loss(Z, mask)
    torch.testing.assert_close(found.loss, expected.loss)
    torch.testing.assert_close(found.per_head, expected.per_head)
    short = model.prediction_loss(Z[:, :1])
    assert short.loss.item() == 0


def test_projection_and_codebook_are_buffers_and_survive_saving(tmp_path):
    model = encoder()
    names = {name for name, _ in model.named_parameters()}
    assert not names & {"projection", "codebook", "latent_mean", "latent_std"}
    model.standardise(2 * Z.reshape(-1, 6) + 1)
    model.save_pretrained(tmp_path)
    again = transformers.AutoModel.from_pretrained(tmp_path)
    assert torch.equal(model.codes(Z), again.codes(Z))
    assert torch.equal(model(Z), again(Z))


def test_a_flow_head_learns_two_modes_and_regression_their_mean():
    generator = torch.Generator().manual_seed(0)
    heads = {"flow": FlowHead(1, 2, 32, 2), "regression": RegressionHead(1, 2, 32, 2)}
    far = {}
    for name, head in heads.items():
        optimiser = torch.optim.Adam(head.parameters(), lr=3e-3)
        for _ in range(400):
            sides = torch.randint(0, 2, (256, 1), generator=generator).float() * 2 - 1
            data = sides + 0.1 * torch.randn(256, 1, generator=generator)
            noise, tau = (
                torch.randn(256, 1, generator=generator),
                torch.rand(256, generator=generator),
            )
            loss = head.loss(data, torch.zeros(256, 2), noise, tau).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        noise = torch.randn(400, 1, generator=generator)
        made = head.sample(torch.zeros(400, 2), noise, steps=20)
        far[name] = float((made.abs() - 1).abs().mean())
        if name == "flow":
            assert 0.3 < float((made > 0).float().mean()) < 0.7
    assert far["flow"] < 0.25
    assert far["regression"] > 0.7


def test_guidance_of_one_is_the_condition_alone_and_dropped_rows_share_one():
    head = FlowHead(3, 4, 8, 1)
    with torch.no_grad():
        for p in head.parameters():
            p.normal_(0, 0.3, generator=torch.Generator().manual_seed(4))
    condition, noise = torch.randn(2, 4), torch.randn(2, 3)
    plain = head.sample(condition, noise, steps=4)
    assert not torch.equal(plain, head.sample(condition, noise, steps=4, guidance=2.0))
    away = head.sample(condition, noise, steps=4, guidance=0.0)
    torch.testing.assert_close(away, head.sample(head.nothing.expand(2, 4), noise, steps=4))
    tau, data = torch.tensor([0.2, 0.7]), torch.randn(2, 3)
    dropped = head.loss(data, condition, noise, tau, torch.tensor([True, True]))
    torch.testing.assert_close(
        dropped, head.loss(data, 5 * condition, noise, tau, torch.ones(2) > 0)
    )


@pytest.mark.parametrize("head", ["flow", "regression"])
def test_a_generator_learns_saves_and_ends(head, tmp_path):
    sizes = {**SMALL, "head": head, "head_size": 16, "head_layers": 1}
    model = new_generator(vocab_size=5, seed=2, **sizes)
    text = torch.tensor([[1, 2], [3, 0]])
    latents = torch.nn.functional.normalize(Z[:2, :6], dim=-1) * 6**0.5
    mask = torch.ones(2, 6)
    mask[1, 4:] = 0
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(60):
        draws = draw_flow(2, 3, 12, generator)
        found = model.loss(text, latents, mask, draws)
        optimiser.zero_grad()
        found.loss.backward()
        optimiser.step()
        losses.append(found.loss.item())
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])
    one = model.generate(text[1:], torch.Generator().manual_seed(1), most_patches=9)
    assert one.shape[1] == 4
    torch.testing.assert_close(one.mean(-1), torch.zeros(1, 4), atol=1e-5, rtol=0)
    model.save_pretrained(tmp_path)
    again = transformers.AutoModel.from_pretrained(tmp_path)
    two = again.generate(text[1:], torch.Generator().manual_seed(1), most_patches=9)
    assert torch.equal(one, two)


def test_states_see_text_and_the_past_alone():
    model = new_generator(vocab_size=5, head_size=8, head_layers=1, **SMALL).eval()
    patches = torch.randn(1, 4, 12, generator=torch.Generator().manual_seed(3))
    changed = patches.clone()
    changed[:, 2:] += 1
    text = torch.tensor([[1, 2, 3]])
    torch.testing.assert_close(
        model.states(text, patches)[:, :3], model.states(text, changed)[:, :3]
    )
    padded = torch.tensor([[1, 2, 3, 0, 0]])
    torch.testing.assert_close(model.states(padded, patches), model.states(text, patches))


NAMED = dict(
    vocab_size=6, alphabet="abc .", voices=["low", "high"], characters_a_patch=1.5, **SMALL
)


def test_a_generator_of_voices_says_a_text_beside_its_patches(tmp_path):
    model = new_generator(head_size=8, head_layers=1, seed=4, **NAMED).eval()
    text = torch.tensor([model.ids("ab c.")])
    assert text.tolist() == [[1, 2, 4, 3, 5]]
    patches = torch.randn(1, 3, 12, generator=torch.Generator().manual_seed(3))
    low, high = (model.states(text, patches, torch.tensor([v])) for v in (0, 1))
    assert not torch.allclose(low, high)
    # Padding behind the text changes nothing: patches stand beside it.
    longer = torch.cat((text, torch.zeros(1, 4, dtype=torch.long)), dim=1)
    torch.testing.assert_close(model.states(longer, patches, torch.tensor([0])), low)
    model.save_pretrained(tmp_path)
    again = open_generator(tmp_path)
    assert list(again.config.voices) == ["low", "high"]
    for voice in ("low", "high"):
        made = [m.generate(text, torch.Generator().manual_seed(1), voice=voice, most_patches=4) for m in (model, again)]  # fmt: skip
        assert torch.equal(*made)


@pytest.mark.parametrize("changes", [{"id2label": 5}, {"dtype": 7}, {"num_labels": "x"}])
def test_a_config_that_transformers_trips_over_is_one_line(changes, tmp_path):
    new_generator(tmp_path, **{**SMALL, "head_size": 8, "head_layers": 1, "vocab_size": 9})
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    with pytest.raises(UserError, match="cannot be loaded"):
        open_generator(tmp_path)


def test_text_is_spelled_with_few_letters():
    assert spelled("-5 to (-2.5), −7 or -$1") == "minus five to, minus two point five, minus seven or minus dollars one"  # fmt: skip
    assert spelled("3-5, COVID-19, - 5") == "three five, covid nineteen, five"
    assert spelled("It’s 3.05 — or 1,000,019?") == "it's three point zero five, or one million nineteen?"  # fmt: skip
    assert spelled("007, Zoë & Łódź…") == "zero zero seven, zoe and lodz."
    assert spelled("  (Yes)  ") == "yes"
    assert spelled("(Why?!)... Well,no") == "why. well, no"
    assert spelled("日本") == "日本"


@pytest.mark.parametrize("beside", [0.0, 1.7])
@pytest.mark.parametrize("topology", ["pre", "siamese_post_pre"])
def test_patches_made_with_a_cache_are_those_made_without(beside, topology):
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "head_size": 8}
    model = new_generator(
        vocab_size=9,
        latent_size=4,
        voices=["a", "b"],
        characters_a_patch=beside,
        norm_topology=topology,
        **sizes,
    ).double()
    with torch.no_grad():  # a head that does nothing at first would make noise of everything
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(3)) / 9)
    text, draw = torch.tensor([[3, 1, 0, 2]]), torch.Generator().manual_seed(1)
    made = model.generate(text, draw, voice="b", most_patches=6, least_patches=6, guidance=1.5)
    again = torch.Generator().manual_seed(1)
    patches = torch.zeros(1, 0, 8, dtype=torch.float64)
    for _ in range(6):
        state = model.states(text, patches, torch.tensor([1]))[:, -1:]
        noise = torch.randn((1, 1, 8), generator=again).double()
        one = model.head.sample(state, noise, 16, 1.5).view(1, 2, 4)
        patches = torch.cat((patches, normalise_frames(one).view(1, 1, 8)), dim=1)
    torch.testing.assert_close(made, patches.view(1, -1, 4))
