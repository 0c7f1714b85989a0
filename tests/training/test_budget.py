import weakref
from collections import Counter
from dataclasses import replace

import pytest
import torch
from training_cases import resolved, rollout

from burnish.config.schema import Lora, Optimiser
from burnish.errors import UserError
from burnish.lm import decoder as decoder_room, head as head_room, load_model
from burnish.lm.architecture import Architecture
from burnish.lm.decoder import Decoder, init_weights, plain_head
from burnish.lm.model_input import ModelInput
from burnish.policy.batch import Advantages
from burnish.seeds import Seeds
from burnish.training import forecast as forecast_room, packing as packing_room
from burnish.training.algorithms.policy_update import PolicyBatch, PolicyUpdate
from burnish.training.forecast import (
    CPU_TOKENS,
    MOST_TOKENS,
    Forecast,
    PackedRows,
    Saving,
    Shape,
    Sizes,
    Workload,
    activation_bytes_per_token,
    check_memory,
    decoder_sizes,
    forecast,
    logits_bytes,
    model_sizes,
    packed_rows,
    pass_tokens,
    savings,
    tokens_within,
    update_bytes,
)
from burnish.training.optimiser import MasterAdamW
from burnish.training.packing import ROW_TOKENS
from burnish.training.trainable import _attach
from burnish.training.update import MicroBatcher, Updater

SMOLLM2 = Sizes(
    layers=30,
    hidden=576,
    intermediate=1536,
    heads=9,
    kv_heads=3,
    head_dim=64,
    bytes_per_value=2,
    is_gpu=True,
    is_fused=True,
)
LLAMA = Architecture(
    family="llama",
    vocab_size=260,
    hidden_size=64,
    intermediate_size=192,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    norm_eps=1e-6,
    rope_theta=1e4,
    max_positions=2048,
    tied_head=True,
)
WIDE = replace(
    LLAMA, hidden_size=144, intermediate_size=384, heads=9, kv_heads=3, head_dim=16, vocab_size=1024
)
"""A quarter of smollm2 in every width."""
MODELS = {"tiny": LLAMA, "qwen3": replace(LLAMA, family="qwen3", qk_norm=True), "smollm2": WIDE}


def decoder(name, dtype):
    """One of these models; narrower in half precision, which a CPU may only emulate."""
    architecture = MODELS[name]
    if dtype.itemsize < 4:
        by = architecture.kv_heads
        architecture = replace(
            architecture,
            hidden_size=architecture.hidden_size // 4,
            intermediate_size=architecture.intermediate_size // 4,
            vocab_size=architecture.vocab_size // 4,
            heads=architecture.heads // by,
            kv_heads=1,
            head_dim=architecture.head_dim * by // 4,
        )
    model = Decoder(architecture)
    init_weights(model, 0)
    return model.to(dtype)


def per_layer(sizes, row_tokens, is_masked):
    deeper = replace(sizes, layers=sizes.layers + 1)
    both = [activation_bytes_per_token(s, row_tokens, is_masked=is_masked) for s in (sizes, deeper)]
    return both[1] - both[0]


def test_bytes_of_a_token_on_a_gpu_by_hand():
    wide = 12 * 576 + 6 * 1536 + 4 * 9 + 8
    assert per_layer(SMOLLM2, 304, True) == wide + 8 * 576
    assert per_layer(SMOLLM2, 304, False) == wide + 4 * 576 + 4 * 192
    full = replace(SMOLLM2, bytes_per_value=4)
    assert per_layer(full, 304, False) == 16 * 576 + 16 * 576 + 12 * 1536 + 4 * 9 + 8
    normed = per_layer(replace(SMOLLM2, has_qk_norm=True), 304, True) - per_layer(
        SMOLLM2, 304, True
    )
    assert normed == 2 * (576 + 192) + 4 * (9 + 3)


def test_logits_are_those_of_a_chunk():
    assert logits_bytes(10, 1000, 2, is_gpu=True) == 20_000
    assert logits_bytes(10, 1000, 2, is_gpu=False) == 40_000, "a CPU widens them"
    assert logits_bytes(10**7, 1000, 2, is_gpu=True) == 2 * 2**30
    assert logits_bytes(10**7, 1000, 4, is_gpu=False) == 128 * 2**20
    assert logits_bytes(5000, 1000, 2, is_gpu=True, has_plain_head=False) == 2048 * 1000 * 12


def test_more_memory_holds_more_within_bounds():
    sizes = (0.1, 1, 4, 12, 24, 80, 4000)
    budgets = [tokens_within(int(free * 2**30), SMOLLM2, 49_152) for free in sizes]
    assert budgets == sorted(budgets)
    assert (budgets[0], budgets[-1]) == (ROW_TOKENS, MOST_TOKENS)
    assert len(set(budgets)) == len(sizes)


def test_a_small_share_of_a_gpu_is_not_kept_free_for_logits_that_never_come():
    # 4 GiB beside other programs: a chunk of logits of 2 GiB is never full.
    found = tokens_within(4 * 2**30, SMOLLM2, 49_152)
    assert found > 4 * ROW_TOKENS
    kept = activation_bytes_per_token(SMOLLM2, ROW_TOKENS, is_masked=True)
    assert found * (kept + 2 * 49_152 * SMOLLM2.bytes_per_value) <= 0.6 * 4 * 2**30
    edges = [tokens_within(free, SMOLLM2, 49_152) for free in range(20 * 2**30, 40 * 2**30, 2**30)]
    assert edges == sorted(edges)


def test_a_decoder_knows_its_sizes_and_a_cpu_its_constant():
    loaded = load_model("tiny", dtype="float32", device="cpu")
    model = loaded.module
    sizes = decoder_sizes(model)
    layer = model.model.layers[0]
    assert model_sizes(loaded) == sizes
    assert sizes.layers == len(model.model.layers)
    assert (sizes.intermediate, sizes.hidden) == tuple(layer.mlp.gate_proj.weight.shape)
    assert sizes.query_width == layer.self_attn.q_proj.weight.shape[0]
    assert sizes.kv_width == layer.self_attn.k_proj.weight.shape[0]
    assert (sizes.bytes_per_value, sizes.is_gpu, sizes.is_fused) == (4, False, False)
    assert pass_tokens(model, torch.device("cpu")) == CPU_TOKENS


def test_the_rows_of_a_step_by_hand(tmp_path):
    def rows_of(prompt, answer, samples=8, **more):
        sizes = {"prompts": 3, "samples": samples, "max_tokens": answer}
        return packed_rows(resolved(tmp_path, {"rollout": sizes}).value, prompt, **more)

    assert rows_of(40, 32) == PackedRows(count=3, width=296, tokens=3 * 296, together=8)
    assert rows_of(40, 150) == PackedRows(9, 490, 3 * (3 * 40 + 8 * 150), 3)
    assert rows_of(40, 161) == PackedRows(24, 201, 24 * 201, 1), "long answers share nothing"
    assert rows_of(40, 32, shares=False) == PackedRows(24, 72, 24 * 72, 1)


class HeldTensors:
    """Counts the bytes that autograd holds; several tensors in one storage count once."""

    def __init__(self, left_out):
        self.left_out = left_out
        self.live = self.peak = 0
        self.users = Counter()

    def pack(self, tensor):
        held = [tensor]
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        if address not in self.left_out:
            self.live += size if self.users[address] == 0 else 0
            self.peak = max(self.peak, self.live)
            self.users[address] += 1
            held = Held(tensor)
            weakref.finalize(held, self.release, address, size)
        return held

    def unpack(self, held):
        return held[0]

    def release(self, address, size):
        self.users[address] -= 1
        self.live -= size if self.users[address] == 0 else 0


class Held(list):
    """A list that can be watched; dies with the graph that holds it."""

    def __init__(self, tensor):
        super().__init__([tensor])


class Given(PolicyUpdate):
    """Updates of batches that the test gives."""

    def batch(self, step):
        raise AssertionError("the test gives its batches")


def held_by_an_update(model, config, rollouts, monkeypatch):
    """Peak of what autograd holds over one update, with the logits that the head keeps itself."""
    batches = MicroBatcher(
        model,
        torch.device("cpu"),
        share_prompts=config.update.share_prompts,
        tokens=config.update.micro_batch_tokens,
    )
    algorithm = Given(
        batches,
        config.policy,
        config.update,
        Seeds(0),
        temperature=1.0,
        max_tokens=config.rollout.max_tokens,
    )
    optimiser = MasterAdamW(model.named_parameters(), Optimiser())
    updater = Updater(algorithm, optimiser, batches)
    logits = []
    real = head_room._logits

    def noted(*arguments):
        made = real(*arguments)
        logits.append(made.untyped_storage().nbytes())
        return made

    monkeypatch.setattr(head_room, "_logits", noted)
    held = HeldTensors({p.untyped_storage().data_ptr() for p in model.parameters()})
    with torch.autograd.graph.saved_tensors_hooks(held.pack, held.unpack):
        done = updater.run(0, PolicyBatch(0, rollouts, moving(len(rollouts))), 0.0)
    assert done.updates == 1
    return held.peak + max(logits), batches


def moving(count):
    """Advantages that leave no rollout out."""
    ones = torch.ones(count, dtype=torch.float64)
    return Advantages(
        values_B=ones,
        per_reward_BK=ones[:, None],
        keep_B=ones.bool(),
        weights_B=ones,
        low_B=0.2 * ones,
        high_B=0.2 * ones,
        signal_B=ones.bool(),
    )


LAYOUTS = {
    "short": (3, 4, 5, 6),
    "short, a rollout a row": (2, 3, 1, 15),
    "long": (2, 5, 10, 15),
    "long, a rollout a row": (1, 3, 12, 65),
    "several passes": (2, 5, 10, 30),
}
"""Prompts, samples, prompt tokens, answer tokens."""


@pytest.fixture
def small_rows(monkeypatch):
    """Rows are long from a quarter of the real length on, so that few tokens make long ones."""
    for room, name in (
        (decoder_room, "SHORT"),
        (forecast_room, "SHORT"),
        (packing_room, "ROW_TOKENS"),
        (forecast_room, "ROW_TOKENS"),
    ):
        monkeypatch.setattr(room, name, getattr(room, name) // 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MODELS)
def test_the_forecast_is_within_10_percent_of_what_autograd_holds(
    name, layout, dtype, tmp_path, monkeypatch, small_rows
):
    prompts, samples, prompt, answer = LAYOUTS[layout]
    model = decoder(name, dtype).requires_grad_(True)
    sizes = {"prompts": prompts, "samples": samples, "max_tokens": answer}
    config = resolved(tmp_path, {"rollout": sizes, "update": {"micro_batch_tokens": 256}}).value
    rollouts = [
        rollout(f"{p}.{i}", str(p), [5 + p] * prompt, [20 + i] * answer)
        for p in range(prompts)
        for i in range(samples)
    ]
    held, passes = held_by_an_update(model, config, rollouts, monkeypatch)
    assert (len(passes.split(rollouts)) > 1) == (layout == "several passes")
    shape = Shape(
        parameters=0,
        trained=0,
        vocabulary=model.architecture.vocab_size,
        sizes=decoder_sizes(model),
    )
    rows = packed_rows(config, prompt)
    assert (rows.width > decoder_room.SHORT) == (not layout.startswith("short"))
    assert (rows.together == 1) == layout.endswith("a rollout a row")
    expected = update_bytes(config, shape, rows, passes.tokens)
    assert expected == pytest.approx(held, rel=0.1)


WORK = Workload(8, 8, 40, 24, has_reference=True)


def shape_of(model, trained=True):
    parameters = sum(p.numel() for p in model.parameters())
    return Shape(
        parameters=parameters,
        trained=parameters if trained else 0,
        vocabulary=model.architecture.vocab_size,
        sizes=decoder_sizes(model),
    )


def test_knobs_are_ranked_by_the_difference_of_two_forecasts(tmp_path):
    config = resolved(tmp_path).value
    shape, budget = shape_of(decoder("smollm2", torch.float32)), 2048
    ranked = savings(config, WORK, shape, budget)
    freed = [saving.bytes for saving in ranked]
    assert freed == sorted(freed, reverse=True)
    assert min(freed) > 0

    def total(work=WORK, budget=budget):
        return forecast(config, work, shape, budget, 2**40).total

    by_change = {saving.change: saving.bytes for saving in ranked}
    for change, then in {
        "rollout.prompts=4": total(WORK._replace(prompts=4)),
        "rollout.samples=4": total(WORK._replace(samples=4)),
        "rollout.max_tokens=12": total(WORK._replace(answer_tokens=12)),
        "update.micro_batch_tokens=1024": total(budget=1024),
        "policy.auxiliary without kl": total(WORK._replace(has_reference=False)),
    }.items():
        assert by_change.get(change, 0) == total() - then, change
    assert by_change["policy.auxiliary without kl"] == 4 * shape.parameters


def test_what_adapters_free_is_counted_from_adapters_that_are_there(tmp_path):
    config, model = resolved(tmp_path).value, decoder("smollm2", torch.float32)
    shape = shape_of(model)
    _attach(model, Lora(), 0)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    adapted = replace(
        shape,
        trained=trained,
        sizes=decoder_sizes(model),
        has_plain_head=plain_head(model) is not None,
    )
    with_lora = resolved(tmp_path, {"model": {"lora": {"rank": 16}}}).value
    now = forecast(config, WORK, shape, 2048, 2**40).total
    then = forecast(with_lora, WORK, adapted, 2048, 2**40).total
    freed = {one.change: one.bytes for one in savings(config, WORK, shape, 2048)}
    assert freed["model.lora.rank=16"] == now - then > 0


def test_a_run_without_hope_is_refused_before_its_first_step():
    hopeless = Forecast({"rollouts": 50 * 2**30}, 4 * 2**30, (Saving("a=1", 3 * 2**30),))
    with pytest.raises(
        UserError, match=r"need 50.0 GiB of memory, and 4.0 GiB are free. a=1 frees"
    ):
        check_memory(hopeless, 10.0)
    check_memory(hopeless, 20.0)
    check_memory(hopeless, 0.0)


@pytest.mark.parametrize("knob", ["prompts", "samples", "max_tokens"])
def test_what_a_knob_frees_is_within_10_percent_of_what_autograd_lets_go(
    knob, tmp_path, monkeypatch
):
    model = decoder("smollm2", torch.float32).requires_grad_(True)
    sizes = {"prompts": 4, "samples": 8, "max_tokens": 24}
    change = f"rollout.{knob}={sizes[knob] // 2}"

    def measured(sizes):
        table = {"rollout": sizes, "update": {"micro_batch_tokens": 4096}}
        config = resolved(tmp_path, table).value
        rollouts = [
            rollout(f"{p}.{i}", str(p), [5 + p] * 40, [20 + i] * sizes["max_tokens"])
            for p in range(sizes["prompts"])
            for i in range(sizes["samples"])
        ]
        return held_by_an_update(model, config, rollouts, monkeypatch)[0], config

    before, config = measured(sizes)
    after, _ = measured(sizes | {knob: sizes[knob] // 2})
    work = Workload(4, 8, 40, 24, is_sampled=False)
    freed = {s.change: s.bytes for s in savings(config, work, shape_of(model, False), 4096)}
    assert freed[change] == pytest.approx(before - after, rel=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("length", [16, 75])
def test_adapters_keep_what_the_formula_says(dtype, length, small_rows):
    model = decoder("smollm2", dtype)
    _attach(model, Lora(), 0)
    held = HeldTensors({p.untyped_storage().data_ptr() for p in model.parameters()})
    ids = torch.arange(2 * length).view(2, length)
    with torch.autograd.graph.saved_tensors_hooks(held.pack, held.unpack):
        hidden = model(ModelInput(ids, torch.arange(length).expand(2, length)))
    assert hidden.requires_grad
    kept = activation_bytes_per_token(decoder_sizes(model), length, is_masked=False)
    assert kept * 2 * length == pytest.approx(held.peak, rel=0.1)
