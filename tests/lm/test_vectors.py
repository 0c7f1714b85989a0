"""The built-in decoder over vectors: the numbers of transformers' own model, cache included."""

import pytest
import torch
import transformers

from burnish.lm.folder import load_model
from burnish.lm.new_model import tiny_model
from burnish.lm.vectors import vector_model
from burnish.models.siamesenorm import new_model
from burnish.models.visual_latent import (
    LatentHead,
    LatentRows,
    LatentTags,
    generate_latents,
    latent_step,
)
from burnish.models.visual_latent.step import decode, embedded, positions

TAGS = LatentTags(start=200, end=201, stop=2)


def draws(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tiny_model(tmp_path_factory.mktemp("tiny"), layers=3)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return vector_model(load_model(folder, device="cpu").module), theirs


def make_rows(size=64):
    """Two rows of which the first is padded; image, words, a span of three."""
    kinds = ["ppiiqqszzzett", "iiqqqqszzzett"]
    ids = torch.randint(4, 200, (2, 13), generator=torch.Generator().manual_seed(1))
    of = {k: torch.tensor([[one == k for one in row] for row in kinds]) for k in "pizse"}
    ids = ids.masked_fill(of["s"], TAGS.start).masked_fill(of["e"], TAGS.end)
    labels = ids.masked_fill(of["p"] | of["i"], -100)
    vectors = draws(2, 13, size, seed=3) * 0.2
    return LatentRows(ids, ~of["p"], vectors, of["i"], of["z"], labels)


def make_head(size=64):
    torch.manual_seed(6)
    head = LatentHead.fit("pca", draws(200, size, seed=4) * 0.2, 8)
    with torch.no_grad():
        for one in head.parameters():
            one.add_(draws(*one.shape, seed=5) * 0.1)
    return head


def test_hidden_states_and_logits_are_those_of_transformers(both):
    ours, theirs = both
    rows, head = make_rows(), make_head()
    inputs, place = embedded(theirs, head, rows), positions(rows.mask_BT)
    torch.testing.assert_close(embedded(ours, head, rows), inputs)
    mine, other = (decode(model, inputs, rows.mask_BT, place) for model in both)
    real = rows.mask_BT
    torch.testing.assert_close(mine.logits[real], other.logits[real], rtol=1e-4, atol=1e-4)
    for one, two in zip(mine.hidden, other.hidden, strict=True):
        torch.testing.assert_close(one[real], two[real], rtol=1e-4, atol=1e-4)


def test_loss_and_gradients_are_those_of_transformers(both):
    found = []
    for model in both:
        model.zero_grad()
        head = make_head()
        step = latent_step(model, head, make_rows(), own_B=torch.tensor([True, False]))
        step.loss.backward()
        weights = dict(model.named_parameters())
        name = next(n for n in weights if n.endswith("layers.0.mlp.down_proj.weight"))
        found.append((step.loss.item(), weights[name].grad.clone(), head.network[0].weight.grad))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    for one, two in zip(found[0][1:], found[1][1:], strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-6)


def test_a_generation_with_the_cache_is_that_of_transformers(both):
    rows, head = make_rows(), make_head()
    prompts = LatentRows(*(part[:, :7] for part in rows[:5]))
    mine, other = (
        generate_latents(model, head, prompts, TAGS, slots=3, max_tokens=6) for model in both
    )
    for one, two in zip(mine, other, strict=True):
        assert one.ids == two.ids
        for latents, others in zip(one.latents, two.latents, strict=True):
            torch.testing.assert_close(latents, others, rtol=1e-3, atol=1e-4)


def test_two_streams_are_read_as_their_own_model_reads_them(tmp_path):
    made = new_model(hidden_size=64, num_hidden_layers=2, vocab_size=260).eval()
    folder = tiny_model(tmp_path / "a")  # its tokenizer
    made.save_pretrained(folder)
    ours = vector_model(load_model(folder, device="cpu").module)
    rows, head = make_rows(), make_head()
    inputs, place = embedded(ours, head, rows), positions(rows.mask_BT)
    mine, other = (decode(model, inputs, rows.mask_BT, place) for model in (ours, made))
    real = rows.mask_BT
    torch.testing.assert_close(mine.hidden.raw[real], other.hidden.raw[real], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mine.logits[real], other.logits[real], rtol=1e-4, atol=1e-4)
