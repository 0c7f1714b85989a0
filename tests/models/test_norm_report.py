"""Norms of streams by layer, layers left out, and Pre-Norm checkpoints with a second stream."""

import json

import pytest
import torch
import transformers
from msgspec.structs import astuple
from torch import nn

from burnish.errors import ArgumentError, UserError
from burnish.lm import load_model
from burnish.lm.model_input import ModelInput
from burnish.lm.new_model import write_byte_tokenizer
from burnish.models.blocks import TOPOLOGIES
from burnish.models.norm_report import (
    LayerWatch,
    drop_sensitivity,
    find_layers,
    measure_norm_gap,
    without_layers,
)
from burnish.models.siamesenorm import from_prenorm, new_model

IDS = torch.randint(4, 250, (2, 12), generator=torch.Generator().manual_seed(1))
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4}


def llama(family: str = "Llama", **changes: object) -> torch.nn.Module:
    torch.manual_seed(2)
    config = getattr(transformers, f"{family}Config")(
        vocab_size=260, num_attention_heads=4, num_key_value_heads=2, head_dim=8, **SIZES, **changes
    )
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_report_measures_the_streams_behind_every_block(topology):
    model = new_model(norm_topology=topology, **SIZES)
    seen = []
    model(IDS, watch=lambda index, before, after, updates: seen.append((before, after, updates)))
    with LayerWatch(model) as watch:
        model(IDS, labels=IDS).loss.backward()
        watch.note_gradients()
    report = watch.report()
    assert len(report.layers) == 4
    for index, (figures, (before, after, updates)) in enumerate(
        zip(report.layers, seen, strict=True)
    ):
        for name in ("x", "y"):
            old, new = getattr(before, name), getattr(after, name)
            norm = getattr(figures, f"{name}_norm")
            ratio = getattr(figures, f"update_ratio_{name}")
            if new is None:
                assert norm is None
                assert ratio is None
                continue
            assert norm == pytest.approx(float(new.detach().norm(dim=-1).mean()), rel=1e-5)
            shares = (1.0, 1.0)
            if name == "x" and topology.startswith("siamese"):
                shares = ((2 * (index + 1)) ** -0.5,) * 2
            total = sum(share * one for share, one in zip(shares, updates, strict=True))
            expected = float(total.detach().abs().mean() / old.detach().abs().mean())
            assert ratio == pytest.approx(expected, rel=1e-4)
        square = sum(float(p.grad.square().sum()) for p in model.model.layers[index].parameters())
        assert figures.gradient_norm == pytest.approx(square**0.5, rel=1e-4)
    names = report.metrics()
    assert names["layers/embedding_norm"] == report.embedding_norm
    assert names["layers/gradient_norm/3"] == report.layers[3].gradient_norm


def test_engine_transformers_and_our_own_module_have_one_report(tmp_path):
    model = new_model(tmp_path, norm_topology="siamese", **SIZES)
    write_byte_tokenizer(tmp_path)
    decoder = load_model(tmp_path, dtype="float32", device="cpu").module
    reports = []
    for module, run in (
        (model, lambda: model(IDS)),
        (decoder, lambda: decoder(ModelInput(IDS, torch.arange(12).expand(2, 12)))),
    ):
        with LayerWatch(module) as watch:
            run()
        reports.append(watch.report().metrics())
    assert reports[0].keys() == reports[1].keys()
    for name, value in reports[0].items():
        assert reports[1][name] == pytest.approx(value, rel=1e-4), name
    theirs = llama()
    with LayerWatch(theirs) as watch:
        hidden = theirs(IDS, output_hidden_states=True).hidden_states
    report = watch.report()
    assert report.layers[1].y_norm == pytest.approx(float(hidden[2].detach().norm(dim=-1).mean()))
    assert report.growth == pytest.approx(report.layers[-1].y_norm / report.embedding_norm)
    assert report.layers[0].x_norm is None


def test_several_passes_are_averaged_over_their_tokens():
    model = new_model(**SIZES)
    with LayerWatch(model) as both:
        model(IDS[:1, :6])
        model(IDS[1:, :3])
    singles = []
    for ids in (IDS[:1, :6], IDS[1:, :3]):
        with LayerWatch(model) as one:
            model(ids)
        singles.append(one.report())
    expected = (6 * singles[0].layers[2].y_norm + 3 * singles[1].layers[2].y_norm) / 9
    assert both.report().layers[2].y_norm == pytest.approx(expected)
    with pytest.raises(ArgumentError, match="nothing was measured"):
        LayerWatch(model).report()


def without_blocks_1_and_3(model: torch.nn.Module) -> torch.Tensor:
    """Logits with the two blocks that stay called by hand."""
    stack, given = model.model.layers, []
    hook = stack[0].register_forward_pre_hook(lambda module, args: given.append(args))
    model(IDS, use_cache=False)
    hook.remove()
    x, y, dtype, context = given[0]
    for block in (stack[0], stack[2]):
        x, y, _ = block(x, y, dtype, context)
    last = stack.final
    return model.lm_head(last.in_norm(last.x_norm(x) + last.y_norm(y)))


def test_a_layer_that_is_left_out_lets_the_streams_pass(tmp_path):
    model = new_model(tmp_path, norm_topology="siamese", **SIZES).eval()
    write_byte_tokenizer(tmp_path)
    decoder = load_model(tmp_path, dtype="float32", device="cpu").module
    whole = model(IDS).logits
    expected = without_blocks_1_and_3(model)
    with without_layers(model, (1, 3)):
        torch.testing.assert_close(model(IDS).logits, expected)
    assert torch.equal(model(IDS).logits, whole)
    inputs = ModelInput(IDS, torch.arange(12).expand(2, 12))
    with without_layers(decoder, (1, 3)):
        torch.testing.assert_close(decoder.logits(decoder(inputs)), expected, atol=1e-5, rtol=1e-4)
    theirs = llama()
    effects = drop_sensitivity(theirs, lambda: theirs(IDS, labels=IDS).loss, [(), (2,), (0, 1, 2)])
    assert effects[0].change == 0
    assert effects[1].change != 0
    found = drop_sensitivity(theirs, lambda: theirs(IDS, labels=IDS).loss)
    assert [effect.layers for effect in found] == [(0,), (1,), (2,), (3,)]
    assert found[2] == effects[1]
    assert drop_sensitivity(theirs, lambda: 0.0, [{2, 1}])[0].layers == (1, 2)


def test_passes_without_gradients_do_not_count_where_training_alone_is_watched():
    model = new_model(**SIZES)
    with LayerWatch(model, only_training=True) as watch:
        with torch.no_grad():
            model(IDS)
        assert watch.is_empty
        model(IDS)
    assert watch.report().layers[0].update_ratio_x is not None


@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
@pytest.mark.parametrize("normalized", [True, False])
def test_a_pre_norm_checkpoint_computes_the_same_until_its_gains_move(family, normalized):
    model = llama(family)
    made = from_prenorm(model, normalized_input=normalized)
    expected = model(IDS).logits
    torch.testing.assert_close(made(IDS).logits, expected, atol=2e-3, rtol=2e-3)
    made(IDS, labels=IDS).loss.backward()
    gains = [p.grad for n, p in made.named_parameters() if n.endswith("x_norm.weight")]
    assert all(bool((gain != 0).any()) for gain in gains)
    damaged = from_prenorm(model, "none", normalized_input=normalized)
    assert float((damaged(IDS).logits - expected).detach().abs().mean()) > 0.05


def test_a_model_without_a_counterpart_is_refused():
    with pytest.raises(ArgumentError, match="model: got GPT2LMHeadModel"):
        from_prenorm(transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1)))
    with pytest.raises(ArgumentError, match="its attention_bias has no counterpart"):
        from_prenorm(llama(attention_bias=True))
    windows = {"use_sliding_window": True, "sliding_window": 4}
    for changes in (windows | {"max_window_layers": 0}, windows | {"max_window_layers": 3}):
        with pytest.raises(ArgumentError, match="its sliding_window has no counterpart"):
            from_prenorm(llama("Qwen3", **changes))
    with pytest.raises(ArgumentError, match="its sliding_window has no counterpart"):
        from_prenorm(llama("Mistral", sliding_window=4))
    from_prenorm(llama("Qwen3", **windows, max_window_layers=4))
    with pytest.raises(ArgumentError, match="warm: got 'slow'"):
        from_prenorm(llama(), "slow")


@pytest.mark.parametrize("topology", ["post", "hybrid"])
def test_the_built_in_decoder_reports_what_layers_add_to_a_normalised_stream(topology, tmp_path):
    model = new_model(norm_topology=topology, **SIZES)
    model.save_pretrained(tmp_path)
    write_byte_tokenizer(tmp_path)
    module = load_model(tmp_path, device="cpu").module
    with LayerWatch(model) as watch:
        model(IDS)
    positions = torch.arange(IDS.shape[1]).expand_as(IDS)
    with LayerWatch(module) as own:
        module(ModelInput(IDS, positions))
    for ours, theirs in zip(own.report().layers, watch.report().layers, strict=True):
        assert ours.update_ratio_x == pytest.approx(theirs.update_ratio_x, rel=1e-4)


@pytest.mark.parametrize("topology", ["post", "hybrid", "siamese", "siamese_hybrid_pre"])
@pytest.mark.parametrize("scale", ["none", "sqrt_2i", "sqrt_l"])
def test_what_a_layer_adds_to_x_is_what_its_depth_scale_lets_through(topology, scale, tmp_path):
    sizes = SIZES | {"norm_topology": topology, "depth_scale": scale}
    model = new_model(tmp_path, initializer_range=0.5, **sizes).eval()
    write_byte_tokenizer(tmp_path)
    decoder = load_model(tmp_path, dtype="float32", device="cpu").module
    positions = torch.arange(IDS.shape[1]).expand_as(IDS)
    expected = []
    for index, block in enumerate(model.model.layers):
        share = {
            "none": (1.0, 1.0),
            "sqrt_2i": ((2 * index + 2) ** -0.5, (2 * index + 2) ** -0.5),
            "sqrt_l": ((2 * index + 1) ** -0.5, (2 * index + 2) ** -0.5),
        }[scale]
        seen: dict[str, torch.Tensor] = {}
        hooks = [
            block.register_forward_pre_hook(lambda _, args, seen=seen: seen.update(x=args[0])),
            block.self_attn.register_forward_hook(lambda *a, seen=seen: seen.update(first=a[2])),
            block.mlp.register_forward_hook(lambda *a, seen=seen: seen.update(second=a[2])),
        ]
        with torch.no_grad():
            model(IDS)
        for hook in hooks:
            hook.remove()
        added = share[0] * seen["first"] + share[1] * seen["second"]
        expected.append(float(added.abs().sum() / seen["x"].abs().sum()))
    for module, run in (
        (model, lambda: model(IDS)),
        (decoder, lambda: decoder(ModelInput(IDS, positions))),
    ):
        with LayerWatch(module) as watch:
            run()
        found = [layer.update_ratio_x for layer in watch.report().layers]
        assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("change", [{"normalized_input": False}, {"norm_type": "layer"}])
def test_weights_that_an_edited_config_does_not_name_are_refused(change, tmp_path):
    new_model(norm_topology="siamese", **SIZES).save_pretrained(tmp_path)
    write_byte_tokenizer(tmp_path)
    load_model(tmp_path, device="cpu")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(UserError, match=r"weight \S*norm\S* .*expected the settings that"):
        load_model(tmp_path, device="cpu")


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
    assert astuple(gap.embedding) == pytest.approx((8 / 3, 5.0, 1.5, 5.0))
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
