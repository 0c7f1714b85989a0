"""The gap between hidden states and embeddings, by hand and on every kind of model."""

import pytest
import torch
import transformers
from torch import nn

from burnish.errors import ArgumentError
from burnish.models.norm_gap import measure_norm_gap
from burnish.models.norm_report import find_layers


class Doubling(nn.Module):
    """A layer whose output is twice its input."""

    def forward(self, hidden_states):
        return hidden_states * 2


class Chain(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.layers = nn.ModuleList(Doubling() for _ in range(count))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x / x.norm(dim=-1, keepdim=True)


INPUTS = torch.tensor([[[3.0, 4.0], [0.0, 1.0], [0.0, 2.0]]])


class Sees(nn.Module):
    """An encoder of pictures with more layers than the decoder, whose layers have experts."""

    def __init__(self):
        super().__init__()
        self.encoder = Chain(6)
        self.language_model = Chain(2)
        for layer in self.language_model.layers:
            layer.experts = nn.ModuleList(nn.Linear(2, 2) for _ in range(9))

    def get_decoder(self):
        return self.language_model

    def forward(self, x):
        return self.language_model(x)


def test_layers_are_those_of_the_text_decoder():
    wrapped = nn.ModuleDict({"model": (model := Sees())})
    assert find_layers(wrapped) == (
        "model.language_model.layers",
        list(model.language_model.layers),
    )
    assert len(find_layers(model.language_model)[1]) == 2
    gap = measure_norm_gap(model, lambda: model(INPUTS))
    assert gap.ratio == pytest.approx(4.0)


def test_lengths_by_hand():
    model = Chain(3)
    gap = measure_norm_gap(model, lambda: model(INPUTS), torch.tensor([[3.0, 4.0], [1.0, 0.0]]))
    assert gap.embedding == pytest.approx((8 / 3, 5.0, 1.5, 5.0))
    assert [layer.mean for layer in gap.layers] == pytest.approx([16 / 3, 32 / 3, 64 / 3])
    assert gap.layers[-1].first == pytest.approx(40.0)
    assert (gap.ratio, gap.rest_ratio) == pytest.approx((8.0, 8.0))
    assert gap.normed_ratio == pytest.approx(3 / 8)
    assert (gap.vocabulary, gap.tokens) == (3.0, 3)
    assert gap.is_wide
    assert "8 times as long" in gap.line()


def test_a_narrow_gap_may_be_fed_back():
    model = Chain(1)
    gap = measure_norm_gap(model, lambda: model(INPUTS[:, :1]))
    assert gap.rest_ratio is None
    assert not gap.is_wide
    assert "fed back as they are" in gap.line()


def test_what_is_no_number_is_refused_with_its_layer():
    model = Chain(2)
    with pytest.raises(ArgumentError, match="layer 1"):
        measure_norm_gap(model, lambda: model(INPUTS * float("nan")))
    with pytest.raises(ArgumentError, match="no layer saw"):
        measure_norm_gap(model, lambda: None)


def test_figures_are_those_of_transformers_own_hidden_states():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.tensor([[4, 9, 2, 7, 7]])
    gap = measure_norm_gap(model, lambda: model.model(ids).last_hidden_state)
    hidden = model(ids, output_hidden_states=True).hidden_states
    means = [float(one.detach().norm(dim=-1).mean()) for one in hidden]
    assert gap.embedding.mean == pytest.approx(means[0], rel=1e-5)
    # The last of transformers is behind the final norm.
    assert [one.mean for one in gap.layers[:-1]] == pytest.approx(means[1:-1], rel=1e-5)
    assert gap.normed.mean == pytest.approx(means[-1], rel=1e-5)
