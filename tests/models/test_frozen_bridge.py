"""A frozen language model as the teacher of representations."""

import pytest
import torch
import transformers

from burnish.errors import ArgumentError
from burnish.models.audio_tokenizer import FrozenLMBridge, new_representation, new_tokenizer

SMALL = {"latent_size": 6, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


def tiny_lm() -> transformers.PreTrainedModel:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 20}
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads))


def test_no_gradient_reaches_the_language_model_or_the_tokenizer():
    tokenizer = new_tokenizer(n_fft=32, frame_hop=16, strides=[2], hidden_size=8, latent_size=6)
    tokenizer.requires_grad_(False)
    with torch.no_grad():
        latents = tokenizer.encode(0.1 * torch.randn(2, 250)).latents
    model, lm = new_representation(seed=1, codes=8, code_size=4, **SMALL), tiny_lm()
    bridge = FrozenLMBridge(lm, 16)
    mask = torch.ones(latents.shape[:2], dtype=torch.bool)
    mask[1, 5:] = False
    ids = torch.tensor([[3, 4, 5, 6], [7, 8, 9, 0]])
    is_target = torch.tensor([[False, True, True, True], [False, True, True, False]])
    hidden = model(latents)
    loss = model.prediction_loss(latents, mask, hidden).loss + bridge(hidden, mask, ids, is_target)
    loss.backward()
    assert all(p.grad is None for p in [*lm.parameters(), *tokenizer.parameters()])
    bridge.check_frozen()
    trained = [*model.named_parameters(), *bridge.named_parameters()]
    assert not any("lm" in name for name, _ in trained)
    assert all(float(p.grad.abs().sum()) > 0 for name, p in trained if "bias" not in name)
    lm.requires_grad_(True)
    with pytest.raises(ArgumentError, match="expected a frozen language model"):
        bridge(hidden, mask, ids, is_target)


@pytest.mark.parametrize("frames", [5, 6])
def test_padding_of_sound_and_text_changes_no_loss(frames):
    bridge = FrozenLMBridge(tiny_lm(), 16)
    hidden = torch.randn(1, frames, 16, generator=torch.Generator().manual_seed(2))
    ids, is_target = torch.tensor([[3, 4, 5]]), torch.tensor([[False, True, True]])
    alone = bridge(hidden, torch.ones(1, frames), ids, is_target)
    longer = torch.cat((hidden, 9 * torch.ones(1, 4, 16)), 1)
    mask = torch.tensor([[1.0] * frames + [0.0] * 4])
    more = torch.nn.functional.pad(ids, (0, 3)), torch.nn.functional.pad(is_target, (0, 3))
    torch.testing.assert_close(bridge(longer, mask, *more), alone)
