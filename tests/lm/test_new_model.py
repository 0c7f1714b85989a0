"""Tokenizers and models of one's own: they load everywhere, and are the same every time."""

import json

import pytest
import torch

from burnish.errors import ArgumentError
from burnish.lm import load_model
from burnish.lm.new_model import NewModel, new_model_folder, train_bpe
from burnish.lm.tokenizer import Tokenizer
from burnish.records import Message

TEXTS = ["the cat sat on the mat 1234", "the dog sat on the log é", "cats and dogs"] * 20


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_bpe_is_the_same_every_time_and_writes_every_text(tmp_path):
    assert train_bpe(iter(TEXTS), 280, tmp_path / "a") == 280
    train_bpe(iter(TEXTS), 280, tmp_path / "b")
    read = [(tmp_path / name / "tokenizer.json").read_bytes() for name in "ab"]
    assert read[0] == read[1]
    tokenizer = Tokenizer.from_folder(tmp_path / "a")
    for text in ("the cat", "Ω unseen \n\t 漢字 12", " two  blanks "):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("the cat sat")) < 6
    assert len(tokenizer.encode("1234")) == 4


def test_bpe_opens_in_transformers_with_the_same_ids_and_template(tmp_path):
    transformers = pytest.importorskip("transformers")
    train_bpe(iter(TEXTS), 280, tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = Tokenizer.from_folder(tmp_path)
    messages = [{"role": "user", "content": "the cat"}]
    text = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == ours.render_text([Message("user", "the cat")])
    assert theirs.encode("the cat sat", add_special_tokens=False) == ours.encode("the cat sat")
    assert theirs.eos_token == "<|im_end|>"
    assert theirs.pad_token == "<|pad|>"


def test_a_new_model_has_the_sizes_asked_for(cache):
    sizes = NewModel(layers=3, width=32, heads=4, kv_heads=2, context=96, tied=False)
    loaded = load_model(new_model_folder(sizes, 5), device="cpu")
    inner, vocabulary = 128, 260
    layer = 32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * inner + 2 * 32
    assert loaded.parameters == 3 * layer + 2 * vocabulary * 32 + 32
    assert loaded.module.max_positions == 96
    again = load_model(new_model_folder(sizes, 6), device="cpu").module.head_weight
    assert not torch.equal(again, loaded.module.head_weight)
    assert new_model_folder(sizes, 5) == loaded.folder


def test_matrices_that_write_to_the_stream_start_smaller(cache):
    sizes = NewModel(layers=8, width=64, heads=2, std=0.02)
    weights = dict(load_model(new_model_folder(sizes, 0), device="cpu").module.named_parameters())
    assert weights["model.layers.0.mlp.up_proj.weight"].std().item() == pytest.approx(
        0.02, rel=0.05
    )
    assert weights["model.layers.0.mlp.down_proj.weight"].std().item() == pytest.approx(
        0.005, rel=0.05
    )


def test_a_new_model_loads_in_transformers(cache):
    transformers = pytest.importorskip("transformers")
    from burnish.lm.model_input import ModelInput

    folder = new_model_folder(NewModel(layers=2, width=32, heads=2), 1)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ours = load_model(folder, dtype="float32", device="cpu").module
    ids = torch.arange(4, 20)[None]
    with torch.no_grad():
        logits = ours.logits(ours(ModelInput(ids, torch.arange(16)[None])))
        torch.testing.assert_close(theirs(ids).logits, logits, rtol=1e-4, atol=1e-5)


def test_a_new_model_takes_a_tokenizer_and_stops_at_both_ends(cache):
    train_bpe(iter(TEXTS), 276, cache / "tok")
    folder = new_model_folder(
        NewModel(layers=1, width=16, heads=2, tokenizer=str(cache / "tok")), 0
    )
    loaded = load_model(folder, device="cpu")
    assert loaded.module.head_weight.shape[0] == 276
    assert set(loaded.tokenizer.eos_ids) == {0, 2}
    assert json.loads((folder / "tokenizer_config.json").read_text())["model_max_length"] == 1024


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"width": 30, "heads": 4}, "width: got 30, expected a multiple of 8 with heads = 4"),
        ({"heads": 4, "kv_heads": 3}, "kv_heads: got 3, expected a divisor of heads = 4"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(settings, line):
    with pytest.raises(ArgumentError, match=line):
        NewModel(**settings)


@pytest.mark.parametrize("topology", ["pre", "siamese", "siamese_hybrid_pre"])
def test_a_new_model_of_any_topology_loads_with_its_norms(cache, topology):
    pytest.importorskip("transformers")
    sizes = {"layers": 2, "width": 32, "heads": 2}
    plain = load_model(new_model_folder(NewModel(**sizes), 0), device="cpu")
    loaded = load_model(new_model_folder(NewModel(topology=topology, **sizes), 0), device="cpu")
    # 4 more norms a layer and 2 at the end, or 2 norms and a scale; each of the width.
    more = {"pre": 0, "siamese": (2 * 4 + 2) * 32, "siamese_hybrid_pre": None}[topology]
    assert more is None or loaded.parameters == plain.parameters + more
    assert loaded.tokenizer.eos_ids == (2, 0)


def test_segments_are_where_pieces_end():
    import numpy as np

    from burnish.lm.model_input import Segments

    starts = np.array([[0, 0, 2, 2], [0, 1, 1, 1], [0, 0, 0, 0]])
    found = Segments.of(starts, torch.device("cpu"))
    assert found.ends_N.tolist() == [0, 2, 4, 5, 8] + [12] * 59
    assert found.longest == 4
    # A compiled model sees the same sizes whatever the pieces are.
    other = Segments.of(np.zeros_like(starts), torch.device("cpu"))
    assert (other.ends_N.shape, other.longest) == (found.ends_N.shape, found.longest)
    module = load_model("tiny", device="cpu").module
    assert not Segments.can_run(module, torch.device("cpu"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_segments_equal_a_mask_on_a_gpu(cache):
    import numpy as np

    from burnish.lm.model_input import ModelInput, Segments

    sizes = NewModel(layers=2, width=128, heads=2, kv_heads=1)
    module = load_model(new_model_folder(sizes, 0), dtype="bfloat16", device="cuda").module
    device = torch.device("cuda")
    assert Segments.can_run(module, device)
    starts = np.array([[0] * 40 + [40] * 24, [0] * 64])
    ids = torch.randint(4, 260, (2, 64), device=device)
    positions = torch.from_numpy(np.arange(64) - starts).to(device)
    begin = torch.from_numpy(starts).to(device)
    column = torch.arange(64, device=device)
    mask = (column >= begin[:, :, None]) & (column <= column[:, None])
    with torch.no_grad():
        masked = module(ModelInput(ids, positions, mask))
        pieces = module(ModelInput(ids, positions, Segments.of(starts, device)))
    torch.testing.assert_close(pieces, masked, rtol=0.05, atol=0.05)
