"""The latent head, its training step and its generation, on a tiny decoder of transformers."""

import pytest
import torch
import transformers

from burnish.errors import ArgumentError, UserError
from burnish.models.siamesenorm import new_model
from burnish.models.visual_latent import (
    KINDS,
    Hidden,
    LatentHead,
    LatentRows,
    LatentTags,
    generate_latents,
    latent_step,
)
from burnish.models.visual_latent.step import decode, embedded, positions

SIZE, VOCABULARY, SLOTS = 32, 40, 3
TAGS = LatentTags(start=1, end=2, stop=3)


def draws(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


EMBEDDINGS = draws(200, SIZE, seed=5) * torch.linspace(2, 0.1, SIZE) + 0.3


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=SIZE,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    made = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return made


def make_head(kind="pca", k=6):
    head = LatentHead.fit(kind, EMBEDDINGS, k)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(draws(*parameter.shape, seed=7) * 0.1)
    return head


def make_rows(pad=0, count=2):
    """`pad` more places on the left of row 0; image, question, start, slots, end, answer."""
    kinds = "iiqqq" + "s" + "z" * SLOTS + "e" + "aaa"
    length = len(kinds) + pad
    ids = torch.randint(4, VOCABULARY, (count, length), generator=torch.Generator().manual_seed(2))
    is_image = torch.zeros(count, length, dtype=torch.bool)
    is_latent, mask = is_image.clone(), torch.ones_like(is_image)
    for row in range(count):
        shift = pad if row == 0 else 0
        mask[row, :shift] = False
        mask[row, shift + len(kinds) :] = False
        for place, kind in enumerate(kinds):
            is_image[row, shift + place] = kind == "i"
            is_latent[row, shift + place] = kind == "z"
            if kind in "se":
                ids[row, shift + place] = TAGS.start if kind == "s" else TAGS.end
    vectors = EMBEDDINGS[: count * length].reshape(count, length, SIZE)
    labels = ids.masked_fill(~mask, -100)
    return LatentRows(ids, mask, vectors, is_image, is_latent, labels)


def up_to_start(rows):
    """Prompts that end in the start tag."""
    end = int((rows.ids_BT[0] == TAGS.start).nonzero()[0]) + 1
    return LatentRows(*(part[:, :end] for part in rows[:5]))


def test_a_fresh_head_predicts_the_mean_and_stays_in_the_subspace():
    h = draws(4, SIZE) * 500
    for kind in ("linear", "pca"):
        fresh = LatentHead.fit(kind, EMBEDDINGS, 6)
        torch.testing.assert_close(fresh(Hidden(h, h)).vector, fresh.mean.expand(4, SIZE))
    head = make_head()
    vector = head(Hidden(h, h)).vector
    torch.testing.assert_close(head.as_input(vector), vector, rtol=1e-4, atol=1e-2)


def test_the_ladder_feeds_what_each_kind_says():
    raw, normed = draws(4, SIZE) * 100, draws(4, SIZE, seed=3)
    found = {kind: make_head(kind)(Hidden(raw, normed)).vector for kind in KINDS}
    assert torch.equal(found["raw"], raw)
    assert torch.equal(found["normed"], normed)
    expected = raw * (EMBEDDINGS.norm(dim=1).mean() / raw.norm(dim=1, keepdim=True))
    torch.testing.assert_close(found["ema_norm"], expected)
    head = make_head("linear")
    torch.testing.assert_close(found["linear"], head.network(normed))
    with pytest.raises(ArgumentError, match="kind: got 'pcaa'"):
        LatentHead.fit("pcaa", EMBEDDINGS)


@pytest.mark.parametrize("kind", ["linear", "pca"])
def test_the_loss_of_the_mean_is_the_number_of_components_for_every_kind(kind):
    head = LatentHead.fit(kind, EMBEDDINGS, 6)
    h = torch.zeros(len(EMBEDDINGS), SIZE)
    loss = head.loss(head(Hidden(h, h)), EMBEDDINGS, torch.ones(len(EMBEDDINGS), dtype=torch.bool))
    assert loss.item() == pytest.approx(6.0, rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_head_comes_back_with_its_basis(kind, tmp_path):
    head, h = make_head(kind), draws(3, SIZE)
    head.observe(EMBEDDINGS * 3)
    head.save(tmp_path / "head.safetensors")
    back = LatentHead.load(tmp_path / "head.safetensors")
    for place in range(5):  # the same bytes each time
        head.save(tmp_path / f"{place}.safetensors")
    assert len({file.read_bytes() for file in tmp_path.iterdir()}) == 1
    assert {"mean", "components", "eigenvalues"} <= set(head.state_dict())
    assert torch.equal(back(Hidden(h, h)).vector, head(Hidden(h, h)).vector)
    assert torch.equal(back.norm, head.norm)


def test_a_file_that_is_no_head_is_refused(tmp_path):
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(1)}, tmp_path / "x.safetensors")
    with pytest.raises(UserError, match="expected a latent head"):
        LatentHead.load(tmp_path / "x.safetensors")
    (tmp_path / "torn.safetensors").write_bytes(b"torn")
    for name in ("torn", "absent"):
        with pytest.raises(UserError, match="expected a latent head"):
            LatentHead.load(tmp_path / f"{name}.safetensors")


def test_long_and_broken_predictions_are_cut_and_counted():
    head = make_head()
    vectors = EMBEDDINGS[:3].clone()
    vectors[1] *= 1e4
    vectors[2, 0] = torch.nan
    safe, is_clipped = head.guard(vectors)
    assert is_clipped.tolist() == [False, True, True]
    assert torch.equal(safe[0], vectors[0])
    assert safe[1].norm().item() == pytest.approx(10 * head.largest.item(), rel=1e-5)
    assert torch.equal(safe[2], head.mean)
    assert make_head("raw").guard(vectors).is_clipped.tolist() == [False, False, True]


def test_a_basis_that_no_longer_fits_is_called_stale():
    head = make_head()
    assert head.stale(EMBEDDINGS) is None
    assert "stale" in head.stale(EMBEDDINGS.flip(1) * 2)


def test_without_latents_the_loss_is_that_of_plain_training_bit_for_bit(model):
    rows = make_rows()
    off = torch.zeros_like(rows.is_latent_BT)
    plain = rows._replace(is_image_BT=off, is_latent_BT=off)
    expected = model(
        input_ids=plain.ids_BT, attention_mask=plain.mask_BT.long(), labels=plain.labels_BT
    ).loss
    for alpha in (0.0, 1.0):
        found = latent_step(model, make_head(), plain, alpha=alpha)
        assert torch.equal(found.loss, expected)
        assert found.parts["latent"].item() == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_that_of_the_states_before_the_slots(model, kind):
    rows, head = make_rows(), make_head(kind)
    step = latent_step(model, head, rows, alpha=0.5, beta=2.0)
    out = decode(model, embedded(model, head, rows), rows.mask_BT, positions(rows.mask_BT))
    errors, cosines = [], []
    for row, place in rows.is_latent_BT.nonzero().tolist():
        found = head(Hidden(*(state[row, place - 1] for state in out.hidden)))
        target = rows.vectors_BTD[row, place]
        errors.append((found.coefficients - head.targets(target)).square().sum())
        cosines.append(1 - torch.cosine_similarity(found.vector, target, dim=0))
    torch.testing.assert_close(step.parts["latent"], torch.stack(errors).mean())
    torch.testing.assert_close(step.parts["cosine"], torch.stack(cosines).mean())
    total = step.parts["text"] + 0.5 * step.parts["latent"] + 2 * step.parts["cosine"]
    torch.testing.assert_close(step.loss, total)


def test_raw_states_are_those_before_the_final_norm(model):
    rows, head = make_rows(), make_head()
    out = decode(model, embedded(model, head, rows), rows.mask_BT, positions(rows.mask_BT))
    torch.testing.assert_close(model.model.norm(out.hidden.raw), out.hidden.normed)
    torch.testing.assert_close(model.lm_head(out.hidden.normed), out.logits)


def test_slots_and_images_have_no_label_and_padding_changes_nothing(model):
    rows, head = make_rows(), make_head()
    other = rows.labels_BT.masked_fill(rows.is_latent_BT | rows.is_image_BT, 7)
    step = latent_step(model, head, rows)
    assert torch.equal(latent_step(model, head, rows._replace(labels_BT=other)).loss, step.loss)
    padded = make_rows(pad=2)
    vectors = torch.zeros_like(padded.vectors_BTD)
    ids, labels = padded.ids_BT.clone(), padded.labels_BT.clone()
    for row, shift in enumerate((2, 0)):
        width = rows.ids_BT.shape[1]
        vectors[row, shift : shift + width] = rows.vectors_BTD[row]
        ids[row, shift : shift + width] = rows.ids_BT[row]
        labels[row, shift : shift + width] = rows.labels_BT[row]
    # The token before a row's first one may not be asked to predict it.
    labels[0, 2] = -100
    moved = padded._replace(vectors_BTD=vectors, ids_BT=ids, labels_BT=labels)
    torch.testing.assert_close(
        latent_step(model, head, moved).parts["latent"], step.parts["latent"], rtol=1e-4, atol=1e-5
    )


def test_gradients_reach_decoder_and_head_and_neither_basis_nor_encoder(model):
    head, rows = make_head(), make_rows()
    vectors = rows.vectors_BTD.clone().requires_grad_()
    only_slots = rows._replace(vectors_BTD=vectors, is_image_BT=torch.zeros_like(rows.is_image_BT))
    model.zero_grad()
    latent_step(model, head, only_slots).parts["latent"].backward()
    assert model.model.layers[0].mlp.up_proj.weight.grad.abs().sum() > 0
    assert all(parameter.grad.abs().sum() > 0 for parameter in head.parameters())
    assert vectors.grad is None or not vectors.grad.any()
    assert not any(buffer.requires_grad for buffer in head.buffers())
    model.zero_grad()


@pytest.mark.parametrize("kind", KINDS)
def test_teacher_forcing_and_generation_step_by_step_predict_the_same(model, kind):
    rows, head = make_rows(), make_head(kind)
    step = latent_step(model, head, rows)
    targets = [[rows.vectors_BTD[row][rows.is_latent_BT[row]]] for row in range(2)]
    answers = generate_latents(
        model,
        head,
        up_to_start(rows),
        TAGS,
        slots=SLOTS,
        max_tokens=2,
        intervention="oracle",
        latents=targets,
    )
    for row, answer in enumerate(answers):
        forced = step.predicted.vector[row][rows.is_latent_BT[row, 1:]]
        torch.testing.assert_close(answer.predicted[0], forced, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(answer.latents[0], head.as_input(targets[row][0]))
        assert answer.ids[0] == TAGS.end


def test_own_latents_in_training_are_those_of_generation(model):
    rows, head = make_rows(), make_head()
    own = torch.tensor([False, True])
    step = latent_step(model, head, rows, own_B=own)
    forced = latent_step(model, head, rows)
    answers = generate_latents(model, head, up_to_start(rows), TAGS, slots=SLOTS, max_tokens=1)
    slots = rows.is_latent_BT[:, 1:]
    torch.testing.assert_close(
        step.predicted.vector[1][slots[1]], answers[1].latents[0], rtol=1e-3, atol=1e-4
    )
    torch.testing.assert_close(step.predicted.vector[0], forced.predicted.vector[0])
    assert not torch.allclose(
        step.predicted.vector[1][slots[1]], forced.predicted.vector[1][slots[1]], atol=1e-3
    )
    step.loss.backward()
    model.zero_grad()


def prompts(pad=0):
    """Two prompts of words of which only the first opens a span at once."""
    ids = torch.randint(4, VOCABULARY, (2, 5 + pad), generator=torch.Generator().manual_seed(8))
    ids[:, pad:] = torch.tensor([[9, 8, 7, 6, TAGS.start], [5, 6, 7, 8, 9]])
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[:, :pad] = False
    off = torch.zeros_like(mask)
    return LatentRows(ids, mask, torch.zeros(*ids.shape, SIZE), off, off)


def one_row(rows, row):
    return LatentRows(*(None if part is None else part[row : row + 1] for part in rows))


def test_rows_in_text_and_rows_in_latents_advance_as_they_would_alone(model):
    head = make_head()
    together = generate_latents(model, head, prompts(pad=2), TAGS, slots=SLOTS, max_tokens=6)
    assert len(together[0].latents) == 1
    for row, answer in enumerate(together):
        (alone,) = generate_latents(
            model, head, one_row(prompts(), row), TAGS, slots=SLOTS, max_tokens=6
        )
        assert alone.ids == answer.ids
        for one, other in zip(alone.latents, answer.latents, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_spans_are_limited_and_always_closed(model):
    head = make_head()
    bias = torch.zeros(VOCABULARY)
    bias[TAGS.start], bias[9] = 1e4, 1e3
    hook = model.lm_head.register_forward_hook(lambda _m, _a, out: out + bias)
    try:
        (answer, _) = generate_latents(
            model, head, prompts(), TAGS, slots=2, max_tokens=7, max_spans=3
        )
    finally:
        hook.remove()
    # The prompt's own span is the first of three.
    start, end = TAGS.start, TAGS.end
    assert answer.ids == [end, start, end, start, end, 9, 9]
    assert [len(span) for span in answer.latents] == [2, 2, 2]
    assert not answer.is_finished


def test_interventions_replace_what_is_fed(model):
    head, rows = make_head(), up_to_start(make_rows())
    plain = generate_latents(model, head, rows, TAGS, slots=SLOTS, max_tokens=2)
    found = {}
    for kind in ("zero", "mean", "noise", "skip", "shuffle", "oracle"):
        given = [answer.latents for answer in plain] if kind in ("shuffle", "oracle") else None
        found[kind] = generate_latents(
            model,
            head,
            rows,
            TAGS,
            slots=SLOTS,
            max_tokens=2,
            intervention=kind,
            latents=given,
            generator=torch.Generator().manual_seed(4),
        )
    fed = {kind: answers[0].latents[0] for kind, answers in found.items()}
    assert not fed["zero"].any()
    torch.testing.assert_close(fed["mean"], head.mean.expand(SLOTS, SIZE))
    assert fed["skip"].shape == (0, SIZE)
    torch.testing.assert_close(fed["shuffle"], plain[1].latents[0], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(fed["oracle"], plain[0].latents[0], rtol=1e-3, atol=1e-3)
    assert found["oracle"][0].ids == plain[0].ids
    # In the subspace, and of the embeddings' size.
    torch.testing.assert_close(head.as_input(fed["noise"]), fed["noise"], rtol=1e-3, atol=1e-3)
    assert all(answer.ids[0] == TAGS.end for answers in found.values() for answer in answers)


def test_noise_has_the_mean_and_covariance_of_the_subspace():
    head = make_head()
    vectors = head.noise(draws(20_000, 6, seed=6))
    torch.testing.assert_close(vectors.mean(0), head.mean, atol=0.06, rtol=0)
    along = ((vectors - head.mean) @ head.components).var(0)
    torch.testing.assert_close(along, head.eigenvalues, rtol=0.05, atol=0)


def test_a_decoder_with_two_streams_takes_latents_too():
    made = new_model(hidden_size=SIZE, num_hidden_layers=2, vocab_size=VOCABULARY)
    rows, head = make_rows(), make_head()
    step = latent_step(made, head, rows)
    step.loss.backward()
    answers = generate_latents(
        made.eval(), head, up_to_start(rows), TAGS, slots=SLOTS, max_tokens=2
    )
    assert answers[0].latents[0].shape == (SLOTS, SIZE)
