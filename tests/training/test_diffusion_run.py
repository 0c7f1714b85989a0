import json

import numpy as np
import pytest
import torch
from training_cases import assert_same, finish, finish_with_stops, outcome, trainer

from burnish.errors import UserError
from burnish.lm.diffusion.masked_rows import Unit, both_ways, unit_losses, unit_of, unit_passes
from burnish.lm.diffusion.sampler import read_decoding
from burnish.seeds import Seeds
from burnish.store import RunStore
from burnish.training.algorithms import diffusion
from burnish.training.algorithms.diffusion import RATES_FILE
from burnish.training.events import HeldOut

TASK = {"kind": "arithmetic", "level": 1}
SMALL = {
    "steps": 4,
    "rewards": [],
    "task": TASK,
    "experts": {"field": "answer"},
    "model": {"path": "diffusion:tiny"},
    "train": {"kind": "diffusion", "batch": 6, "canvas": 4, "decoding": "block=4"},
    "evaluation": {"prompts": 4},
    "checkpoint": {"every": 2},
}
PROBED = {
    "rates": "p_pots",
    "probe_at": 1,
    "refit_every": 2,
    "probe_rows": 3,
    "probe_rates": 6,
    "probe_masks": 2,
}
NOISES = {
    "standard": {"strata": False},
    "clipped": {"rates": "clipped"},
    "two masks": {"passes": 2},
    "mirror": {"masks": "mirror"},
    "mirror once": {"masks": "mirror_deduplicated"},
    "delimiters": {"delimiters": ["1"]},
    "fitted": {**PROBED, "masks": "mirror"},
}


def table(**train):
    return {**SMALL, "train": {**SMALL["train"], **train}}


def made(folder, *, dtype="float64", **train):
    one = trainer(folder, {**table(**train), "model": {"path": "diffusion:tiny", "dtype": dtype}})
    return one, one.stage.algorithm


def book_loss(module, units):
    """One row at a time, through the whole vocabulary."""
    total, mask = 0.0, module.architecture.mask_id
    for unit in units:
        ids = list(unit.row.ids)
        for place in unit.places:
            ids[place] = mask
        logits = module.logits(module(both_ways([ids], pad=0, device=torch.device("cpu"))))[0]
        allowed = torch.arange(logits.shape[-1]) != mask
        logp = logits.masked_fill(~allowed, float("-inf")).log_softmax(-1)
        nll = sum(
            -logp[place, unit.row.ids[place]] / chance
            for place, chance in zip(unit.places, unit.chances, strict=True)
        )
        total = total + unit.scale * nll / unit.row.count
    return total


@pytest.mark.parametrize(
    ("noise", "budget"),
    [*((noise, 200) for noise in NOISES), ("mirror once", 1), ("mirror", 100_000)],
)
def test_loss_and_gradient_are_those_of_the_whole_batch(tmp_path, noise, budget):
    one, algorithm = made(tmp_path, **NOISES[noise])
    module = algorithm.module
    batch = algorithm.batch(2)
    wanted = book_loss(module, batch.units)
    named = list(module.parameters())
    expected = torch.autograd.grad(wanted, named)
    module.zero_grad()
    total = 0.0
    for micro in algorithm.micro_batches(batch, budget):
        found = algorithm.loss(module, micro)
        found.total.backward()
        total += found.total.item()
    one.store.close()
    assert total == pytest.approx(wanted.item(), rel=1e-9)
    for parameter, gradient in zip(named, expected, strict=True):
        own = torch.zeros_like(gradient) if parameter.grad is None else parameter.grad
        assert torch.allclose(own, gradient, atol=1e-9)


def test_prompts_are_never_masked_and_answers_are_filled(tmp_path):
    one, algorithm = made(tmp_path)
    end = algorithm.rows.experts.end[0]
    for unit in algorithm.batch(0).units:
        row = unit.row
        assert row.count == 4
        assert row.ids[-1] == end
        assert all(place >= row.prompt for place in unit.places)
    one.store.close()


def test_a_step_asked_for_twice_is_the_same_and_others_differ(tmp_path):
    one, algorithm = made(tmp_path)
    first, again, other = (algorithm.batch(step) for step in (1, 1, 2))
    assert torch.equal(first.t_B, again.t_B)
    for left, right in zip(first.units, again.units, strict=True):
        assert np.array_equal(left.places, right.places)
    assert not torch.equal(first.t_B, other.t_B)
    one.store.close()


def test_strata_spread_the_rates_of_the_whole_step(tmp_path):
    one, algorithm = made(tmp_path, batch=16, strata=True)
    rates = algorithm.batch(0).t_B
    counts = torch.histc(rates, bins=4, min=0, max=1)
    one.store.close()
    assert counts.tolist() == [4, 4, 4, 4]


def test_nothing_masked_is_exactly_zero(tmp_path):
    one, algorithm = made(tmp_path)
    row = algorithm.batch(0).rows[0]
    empty = unit_of(row, np.zeros(len(row.ids), bool), np.ones(len(row.ids)))
    loss = unit_losses(algorithm.module, [empty], torch.device("cpu"))
    loss.sum().backward()
    one.store.close()
    assert loss.tolist() == [0.0]


def test_passes_hold_to_their_budget():
    class Row:
        def __init__(self, size):
            self.ids = (0,) * size

    units = [Unit(Row(size), (), ()) for size in (3, 9, 5, 5, 30)]
    cut = [[len(unit.row.ids) for unit in some] for some in unit_passes(units, 15)]
    assert cut == [[30], [9], [5, 5, 3]]


@pytest.mark.parametrize(
    ("noise", "stop"), [("standard", 3), ("fitted", 1), ("fitted", "2 saved"), ("fitted", 3)]
)
def test_a_stopped_run_goes_on_bit_by_bit(tmp_path, noise, stop):
    whole = {**table(**NOISES[noise]), "model": {"path": "diffusion:tiny"}}
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    finish(trainer(tmp_path / "a", whole))
    finish_with_stops(lambda: trainer(tmp_path / "b", whole), stop)
    assert_same(outcome(tmp_path / "b" / "run"), outcome(tmp_path / "a" / "run"))


def test_held_out_losses_do_not_depend_on_the_sampler(tmp_path):
    found = {}
    for name in ("standard", "mirror", "fitted"):
        (tmp_path / name).mkdir()
        events = finish(trainer(tmp_path / name, {**table(**NOISES[name]), "run": {"seed": 3}}))
        found[name] = next(event for event in events if isinstance(event, HeldOut)).score
    assert found["standard"] == found["mirror"] == found["fitted"]
    assert found["standard"].value > 4


def test_the_fitted_density_lies_in_the_run(tmp_path):
    finish(trainer(tmp_path, table(**PROBED)))
    said = json.loads((tmp_path / "run" / RATES_FILE).read_text())
    assert said["family"] == "epr"
    assert said["fitted_at"] == 3
    assert len(said["probe"]["w"]) == 6


def test_the_trained_model_writes_as_it_was_trained(tmp_path):
    finish(trainer(tmp_path, table()))
    newest = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))[-1]
    found = read_decoding(newest)
    assert (found.block, found.canvas) == (4, 4)


def test_text_is_learned_without_a_prompt(tmp_path):
    rows = tmp_path / "texts.jsonl"
    rows.write_text(
        "".join(json.dumps({"q": f"{i}", "text": "a" * (5 + i)}) + "\n" for i in range(9))
    )
    task = {"kind": "file", "path": str(rows), "prompt": "q", "fields": {"text": "text"}}
    train = {"kind": "diffusion", "batch": 4, "on": "text", "sequence": 8}
    given = {**SMALL, "task": task, "experts": {"field": "text"}, "train": train}
    one = trainer(tmp_path, given)
    rows_of = one.stage.algorithm.batch(0).rows
    assert all(row.prompt == 0 and 1 <= len(row.ids) <= 8 for row in rows_of)
    finish(one)
    newest = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))[-1]
    assert read_decoding(newest).canvas == 0  # it never saw a filled canvas


def shown(folder, answers, **train):
    """A run on these demonstrations."""
    rows = folder / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"q": f"{i}?", "text": text}) + "\n" for i, text in enumerate(answers))
    )
    task = {"kind": "file", "path": str(rows), "prompt": "q", "fields": {"text": "text"}}
    given = {**table(**train), "task": task, "experts": {"field": "text"}}
    return trainer(folder, given)


@pytest.mark.parametrize("on", ["answers", "text"])
def test_the_text_of_the_mask_is_plain_text(tmp_path, on):
    canvas = {"canvas": 64} if on == "text" else {}
    one = shown(tmp_path, ["say <|mask|> now"] * 6, on=on, **canvas)
    algorithm = one.stage.algorithm
    mask = algorithm.module.architecture.mask_id
    batch = algorithm.batch(0)
    losses = unit_losses(algorithm.module, batch.units, torch.device("cpu"))
    one.store.close()
    assert not any(mask in row.ids for row in batch.rows)
    assert losses.max() < 1000


def test_rows_that_are_too_long_are_left_out_and_counted(tmp_path, caplog):
    with caplog.at_level("WARNING"):
        one = shown(tmp_path, ["short", "x" * 1500, "also short", "y" * 1100, "small"] * 3)
    algorithm = one.stage.algorithm
    rows = [row for step in range(4) for row in algorithm.batch(step).rows]
    kept = sum(algorithm.rows.experts.counts.values())
    algorithm.evaluate(0)
    one.store.close()
    assert all(len(row.ids) < 100 for row in rows)
    said = [one.getMessage() for one in caplog.records if "left out" in one.getMessage()]
    assert len(said) == 1
    assert int(said[0].split()[1]) + kept == algorithm.rows.experts.tasks.train_size
    (tmp_path / "all").mkdir()
    with pytest.raises(UserError, match="are longer than the model reads"):
        shown(tmp_path / "all", ["x" * 1500] * 6)


def test_each_row_is_masked_as_if_alone(tmp_path):
    one = shown(tmp_path, ["a", "abcdefg", "ab" * 9], masks="mirror", delimiters=["b"])
    algorithm = one.stage.algorithm
    batch = algorithm.batch(0)
    seeds = Seeds(algorithm.setup.seeds.for_("masks", 0))
    generator = torch.Generator().manual_seed(algorithm.setup.seeds.for_("rates", 0))
    u_B = algorithm.noise.rate_uniforms(len(batch.rows), generator)
    for i, row in enumerate(batch.rows):
        own = torch.Generator().manual_seed(seeds.for_("row", i))
        field = algorithm.noise.mask_uniforms(1, len(row.ids), own)
        alone = algorithm.noise.corrupt(
            torch.tensor([row.ids]),
            torch.from_numpy(row.eligible)[None],
            u_B[i : i + 1],
            field,
            260,
        )
        units = [unit for unit in batch.units if unit.number == i]
        for unit, wanted in zip(units, alone.passes, strict=True):
            places = wanted.mask_BL[0].nonzero()[:, 0]
            assert unit.places.tolist() == places.tolist()
            assert unit.chances.tolist() == wanted.chance_BX[0, places].tolist()
    one.store.close()


def test_rescaled_losses_pull_alike_and_go_on(tmp_path):
    one, algorithm = made(tmp_path, control="rescale", strata=False)
    baseline = algorithm.noise.baseline
    baseline.baseline = [1.0] * 5 + [3.0] * 5
    batch = algorithm.batch(0)
    one.store.close()
    high = batch.t_B > 0.5
    wanted = torch.where(high, 1 / 1.5, 1 / 0.5).double() / len(batch.rows)
    scales = torch.tensor([unit.scale for unit in batch.units], dtype=torch.float64)
    assert torch.allclose(scales, wanted, atol=1e-6)
    assert algorithm.state().values["noise"]["baseline"]["baseline"] == baseline.baseline


def test_it_learns(tmp_path):
    events = finish(
        trainer(tmp_path, {**table(batch=16), "steps": 25, "optimiser": {"learning_rate": 3e-3}})
    )
    scores = [event.score.value for event in events if isinstance(event, HeldOut)]
    assert scores[-1] < 0.6 * scores[0]
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        found = store.metrics("diffusion/smoothed_loss")["diffusion/smoothed_loss"]
    assert len(found) == 24


def test_rewards_may_be_what_is_held_out(tmp_path):
    given = {**table(held_out="rewards"), "rewards": [{"kind": "numeric", "name": "right"}]}
    given["rollout"] = {"max_tokens": 4}
    events = finish(trainer(tmp_path, {**given, "steps": 1}))
    found = [event for event in events if isinstance(event, HeldOut)]
    assert {event.measure for event in found} == {"reward"}
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        (sample, *_) = store.samples()
    assert len(sample.trajectory.info["unmasked"][0]) == len(sample.trajectory.spans[-1].token_ids)


def test_syntax_of_prompts_joins_what_may_be_masked(tmp_path, monkeypatch):
    plain, algorithm = made(tmp_path)
    before = algorithm.batch(0).rows[0].count
    plain.store.close()
    (tmp_path / "other").mkdir()
    one, algorithm = made(tmp_path / "other", syntax="markdown")
    row = algorithm.batch(0).rows[0]
    seen = []
    held_out = diffusion.held_out_losses
    monkeypatch.setattr(
        diffusion,
        "held_out_losses",
        lambda module, rows, *more: seen.extend(rows) or held_out(module, rows, *more),
    )
    algorithm.evaluate(0)
    one.store.close()
    assert row.count > before
    assert {one.count for one in seen} == {before}  # held-out losses are of answers alone


def test_a_curve_that_runs_away_beyond_its_probe_is_held():
    from burnish.models.masked_diffusion.rates import density_of

    wild = {"a": 1.0, "b": 1.0, "A": 1e-30, "r": 1.0, "q": 1.0, "kappa": 400.0, "m": 30.0}
    found = density_of(torch.tensor([0.2, 0.4, 0.6, 0.8], dtype=torch.float64), wild, 0.0)
    assert bool(found.fine_density.isfinite().all())
    inside = found.fine_density[(found.fine_grid >= 0.2) & (found.fine_grid <= 0.8)]
    assert float(found.fine_density.max()) <= 2.0 * float(inside.max()) * 1.01


def test_shipped_and_fresh_models_are_converted_on_the_way(tmp_path):
    for path in ("tiny", "new"):
        (tmp_path / path).mkdir()
        model = {"path": path, "new": {"layers": 1, "width": 32, "heads": 2}}
        one = trainer(tmp_path / path, {**table(), "model": model})
        one.store.close()
        assert one.stage.algorithm.module.architecture.mask_id is not None


def gradients_of(algorithm, batch, budget):
    module = algorithm.module
    module.zero_grad()
    total = 0.0
    for micro in algorithm.micro_batches(batch, budget):
        found = algorithm.loss(module, micro)
        found.total.backward()
        total += found.total.item()
    named = dict(module.named_parameters())
    return total, {name: p.grad.clone() for name, p in named.items() if p.grad is not None}


@pytest.mark.parametrize("budget", [60, 100_000])
@pytest.mark.parametrize("noise", [{}, {"rates": "clipped"}, {"masks": "mirror"}])
def test_a_control_variate_by_gradient_adds_what_it_takes_off_on_average(tmp_path, budget, noise):
    one, algorithm = made(tmp_path, control="gradient", **noise)
    baseline = algorithm.gradient_baseline
    batch = algorithm.batch(1)
    plain = gradients_of(algorithm, batch, budget)
    drawn = torch.Generator().manual_seed(1)
    held = torch.randn(baseline.gradients_KN.shape, generator=drawn, dtype=torch.float64)
    baseline.gradients_KN = held
    total, moved = gradients_of(algorithm, batch, budget)
    wanted = baseline.correction(batch.t_B, batch.weight_B)
    sizes = [p.numel() for p in baseline.parameters]
    names = {id(p): name for name, p in algorithm.module.named_parameters()}
    shifts = dict(zip(map(id, baseline.parameters), torch.split(wanted, sizes), strict=True))
    for name, gradient in moved.items():
        shift = next((s for i, s in shifts.items() if names[i] == name), None)
        own = plain[1][name] + (0 if shift is None else shift.view_as(gradient))
        assert torch.allclose(gradient, own, atol=1e-9)
    assert total == pytest.approx(plain[0])  # the loss says nothing of it
    many = torch.Generator().manual_seed(2)
    u = (torch.arange(20_000) + torch.rand(20_000, generator=many)).double() / 20_000
    rates = algorithm.noise.rates.rates(u)
    mean = baseline.correction(rates.t, rates.weight)
    one.store.close()
    assert wanted.abs().max() > 0.1
    assert mean.abs().max() < 1e-2


def test_running_gradients_are_means_of_their_bin_however_the_step_is_cut(tmp_path):
    from burnish.models.masked_diffusion.control import bins_of

    one, algorithm = made(tmp_path, control="gradient", passes=2)
    baseline, batch = algorithm.gradient_baseline, algorithm.batch(0)
    sums = []
    for budget in (1, 100_000):
        parts = [
            algorithm.loss(algorithm.module, m) for m in algorithm.micro_batches(batch, budget)
        ]
        sums.append(sum(part.sums["bin_gradients"] for part in parts))
    assert torch.allclose(sums[0], sums[1], atol=1e-9)
    baseline.learn(sums[0], batch.t_B)
    k = int(bins_of(batch.t_B, baseline.bins)[0])
    members = [i for i, b in enumerate(bins_of(batch.t_B, baseline.bins).tolist()) if b == k]
    units = [u for u in batch.units if u.number in members]
    mean = unit_losses(algorithm.module, units, torch.device("cpu")).sum() / 2 / len(members)
    own = torch.cat([g.flatten() for g in torch.autograd.grad(mean, baseline.parameters)])
    one.store.close()
    assert torch.allclose(baseline.gradients_KN[k], baseline.lr * own, atol=1e-9)


def test_a_run_with_a_control_variate_goes_on_bit_by_bit(tmp_path):
    given = table(control="gradient")
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    finish(trainer(tmp_path / "whole", given))
    finish_with_stops(lambda: trainer(tmp_path / "parts", given), "2 saved")
    assert_same(outcome(tmp_path / "whole" / "run"), outcome(tmp_path / "parts" / "run"))


def test_a_control_variate_needs_trained_matrices(tmp_path):
    given = {
        **table(control="gradient"),
        "model": {"path": "diffusion:tiny", "lora": {"rank": 2, "targets": ["q_proj"]}},
    }
    with pytest.raises(UserError, match="output matrices are not trained"):
        trainer(tmp_path, given)
