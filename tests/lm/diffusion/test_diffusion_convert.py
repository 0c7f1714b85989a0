"""A causal folder made into a masked diffusion model's: what it computes, who reads it, what is refused."""

import json

import pytest
import torch

from burnish.errors import UserError
from burnish.lm import load_model
from burnish.lm.diffusion.convert import choose_mask, convert
from burnish.lm.diffusion.masked_rows import PADDING, both_ways, segment_mask
from burnish.lm.folder import find_folder, is_diffusion, save_model
from burnish.lm.local import LocalLM
from burnish.lm.model_input import ModelInput
from burnish.lm.new_model import NewModel, new_model_folder, tiny_model
from burnish.lm.tokenizer import Tokenizer
from burnish.lm.weights import read_weights, write_weights

CPU = torch.device("cpu")
ROWS = ([5, 6, 7, 8, 9], [10, 11, 12])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    source = tiny_model(tmp_path_factory.mktemp("causal") / "tiny", seed=3)
    return convert(source, tmp_path_factory.mktemp("converted") / "model").folder


def states(module, rows):
    return module(both_ways(rows, pad=0, device=CPU))


def test_weights_stay_and_a_row_of_the_mask_is_added(folder):
    loaded = load_model(folder, device="cpu")
    assert is_diffusion(loaded)
    assert loaded.module.architecture.mask_id == 260
    weight = loaded.module.head_weight
    assert weight.shape[0] == 261
    assert torch.allclose(weight[260], weight[:260].mean(0), atol=1e-7)
    assert loaded.tokenizer.backend.token_to_id("<|mask|>") == 260
    assert loaded.tokenizer.encode("<|mask|>") == [260]


def test_a_token_sees_what_stands_behind_it(folder):
    module = load_model(folder, dtype="float64", device="cpu").module
    one, other = states(module, [[5, 6, 7, 8]]), states(module, [[5, 6, 7, 99]])
    assert (one[0, 0] - other[0, 0]).abs().max() > 1e-6


def test_padding_and_rows_on_one_line_are_told_apart(folder):
    module = load_model(folder, dtype="float64", device="cpu").module
    together = states(module, ROWS)
    for place, row in enumerate(ROWS):
        alone = states(module, [row])
        assert torch.allclose(together[place, : len(row)], alone[0], atol=1e-12)
    ids = torch.tensor([[*ROWS[0], *ROWS[1]]])
    positions = torch.tensor([[*range(5), *range(3)]])
    segments = torch.tensor([[0] * 5 + [1] * 3])
    packed = module(ModelInput(ids, positions, segment_mask(segments)))
    assert torch.allclose(packed[0, :5], states(module, [ROWS[0]])[0], atol=1e-12)
    assert torch.allclose(packed[0, 5:], states(module, [ROWS[1]])[0], atol=1e-12)
    assert PADDING not in segments


def test_prompts_that_see_themselves_do_not_change_with_the_answer(tmp_path):
    convert(tiny_model(tmp_path / "a"), tmp_path / "b", prompt_sees="prompt")
    module = load_model(tmp_path / "b", dtype="float64", device="cpu").module
    rows = [[5, 6, 7, 8], [5, 6, 99, 100]]
    found = module(both_ways(rows, pad=0, device=CPU, prompts=[2, 2]))
    assert torch.equal(found[0, :2], found[1, :2])
    assert not torch.allclose(found[0, 2:], found[1, 2:])


def test_the_familys_own_class_computes_the_same_under_a_mask_of_ones(folder):
    transformers = pytest.importorskip("transformers")
    module = load_model(folder, device="cpu").module
    theirs = transformers.LlamaForCausalLM.from_pretrained(folder, attn_implementation="eager")
    ids = torch.tensor([[5, 6, 7, 8, 260]])
    with torch.no_grad():
        own = module.logits(states(module, ids.tolist()))
        # A mask of four axes is added to the scores as it is.
        out = theirs(input_ids=ids, attention_mask=torch.zeros(1, 1, 5, 5)).logits
    assert torch.allclose(own, out, atol=1e-5)


def test_a_reader_of_causal_models_refuses_the_folder(folder):
    transformers = pytest.importorskip("transformers")
    with pytest.raises(ValueError, match="burnish-masked-diffusion"):
        transformers.AutoModelForCausalLM.from_pretrained(folder)


def test_saved_is_what_was_loaded(folder, tmp_path):
    loaded = load_model(folder, device="cpu")
    save_model(loaded, tmp_path / "again")
    again = load_model(tmp_path / "again", device="cpu")
    assert again.config == loaded.config
    for name, weight in loaded.module.state_dict().items():
        assert torch.equal(weight, again.module.state_dict()[name])


def test_a_reserved_token_is_reused():
    if not _has_smollm2():
        pytest.skip("the embedded model is not installed")
    tokenizer = Tokenizer.from_folder(find_folder("smollm2"))
    assert choose_mask(tokenizer, 49152)[:2] == (16, "<empty_output>")
    assert choose_mask(tokenizer, 49152, "<repo_name>") == (3, "<repo_name>", False)


def _has_smollm2():
    try:
        return find_folder("smollm2").is_dir()
    except UserError:
        return False


def test_a_new_mask_in_a_padded_embedding_is_the_mean_of_the_tokens(tmp_path):
    source = tiny_model(tmp_path / "a", seed=3)
    file = source / "model.safetensors"
    weights = read_weights(file)
    wide = {
        name: torch.cat([value, torch.full((4, value.shape[1]), 7.0)])
        if len(value) == 260
        else value
        for name, value in weights.items()
    }
    write_weights(file, wide)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "vocab_size": 264}))
    convert(source, tmp_path / "b")
    weight = load_model(tmp_path / "b", device="cpu").module.head_weight
    assert weight.shape[0] == 264
    assert torch.allclose(weight[260], weight[:260].mean(0), atol=1e-6)
    assert weight[261:].eq(7.0).all()


@pytest.mark.parametrize("topology", ["siamese", "siamese_hybrid_pre"])
def test_our_own_family_is_converted(tmp_path, monkeypatch, topology):
    pytest.importorskip("transformers")
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    sizes = NewModel(layers=2, width=32, heads=2, topology=topology)
    convert(new_model_folder(sizes, 0), tmp_path / "b")
    loaded = load_model(tmp_path / "b", dtype="float64", device="cpu")
    assert is_diffusion(loaded)
    one, other = (states(loaded.module, [[5, 6, 7, last]]) for last in (8, 9))
    assert (one[0, 0] - other[0, 0]).abs().max() > 1e-6
    together = states(loaded.module, ROWS)
    assert torch.allclose(together[1, :3], states(loaded.module, [ROWS[1]])[0], atol=1e-12)
    (scores,) = LocalLM(loaded).score_batch([([5, 6], [7, 8])])
    assert scores.standard_error is not None
