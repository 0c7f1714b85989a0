"""The variance report against a model whose moments are known, and against plain draws."""

import itertools
import json
from dataclasses import replace
from functools import cache

import pytest
import torch

from burnish.errors import ArgumentError
from burnish.models.masked_diffusion import (
    Noise,
    PPots,
    collate,
    probe_table,
    report as report_module,
    token_nll,
    variance_report,
)
from burnish.models.masked_diffusion.objective import mask_chance
from burnish.models.masked_diffusion.rates import rate_cells
from burnish.models.masked_diffusion.report import MASK_KINDS, _shares, _stratum_shares

MASK_ID = 5
ROWS = [
    {"input_ids": [1, 2, 3, 4, 1, 0], "prompt_length": 1},
    {"input_ids": [2, 2, 3, 0, 0], "prompt_length": 1},
    {"input_ids": [3, 1, 0, 0, 0, 4, 4], "prompt_length": 2},
]


class Model(torch.nn.Module):
    """Reads each token and how much of the row is masked."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(6, 8)
        self.head = torch.nn.Linear(8, 6)

    def forward(self, ids: torch.Tensor, attention: torch.Tensor) -> torch.Tensor:
        seen = self.embed(ids) * attention[..., None]
        return self.head(torch.tanh(seen + 2 * seen.mean(1, keepdim=True)))


def test_records_become_a_batch_and_those_without_an_answer_are_dropped():
    found = collate([*ROWS, {"input_ids": [1, 2], "prompt_length": 2}])
    assert found.dropped == 1
    assert found.ids_XL.shape == (3, 7)
    assert found.ids_XL[1].tolist() == [2, 2, 3, 0, 0, 0, 0]
    assert found.eligible_XL.sum(1).tolist() == [5, 4, 5]
    assert found.attention_XL.sum(1).tolist() == [6, 5, 7]
    with pytest.raises(ArgumentError, match="none of 1 has an answer"):
        collate([{"input_ids": [1, 2], "prompt_length": 2}])


@pytest.fixture(scope="module")
def report():
    model = Model()
    return variance_report(
        model, collate(ROWS), MASK_ID, parameters=[model.head.weight], rates=24, masks=20, strata=4
    )


@cache
def exact_variances() -> dict[str, tuple[float, float]]:
    """Loss variance and gradient trace of each kind of mask by enumeration of all masks and pairs."""
    model, table = Model(), collate(ROWS)
    rates = 600
    edges = (torch.arange(rates + 1, dtype=torch.float64) / rates) ** 3
    t, width = (edges[1:] + edges[:-1]) / 2, edges.diff()
    p = mask_chance(t)
    second = {name: [torch.zeros(3, dtype=torch.float64) for _ in "lg"] for name in MASK_KINDS}
    means: list[list[torch.Tensor]] = [[], []]
    for row, (ids, eligible, attention) in enumerate(zip(*table[:3], strict=True)):
        places = eligible.nonzero()[:, 0]
        bits = torch.tensor(list(itertools.product([0, 1], repeat=len(places))))
        masks = torch.zeros(len(bits), len(ids), dtype=torch.bool)
        masks[:, places] = bits.bool()
        ids_BL = ids.expand_as(masks)
        nll = token_nll(
            model(ids_BL.masked_fill(masks, MASK_ID), attention.expand_as(masks)), ids_BL, MASK_ID
        )
        sums = torch.where(masks, nll, 0.0).sum(1) / len(places)
        grads = [torch.autograd.grad(one, model.head.weight, retain_graph=True)[0] for one in sums]
        vectors = [sums.detach().double()[:, None], torch.stack(grads).flatten(1).double()]
        hidden = bits.sum(1)[:, None].double()
        chance = p**hidden * (1 - p) ** (len(places) - hidden)  # (masks, T)
        states = torch.tensor(list(itertools.product([0, 1, 2], repeat=len(places))))
        # Of a pair: 0 first alone, 1 second alone, 2 both (p > 1/2) or none.
        sole = torch.minimum(p, 1 - p)
        alone = (states < 2).sum(1)[:, None].double()
        joint = sole**alone * (1 - 2 * sole) ** (len(places) - alone)
        code = 2 ** torch.arange(len(places) - 1, -1, -1)
        for kind, z in enumerate(vectors):
            mean = (chance / p).T @ z
            one = (chance / p**2).T @ z.square().sum(1)
            means[kind].append((mean * width[:, None]).sum(0))
            second["one mask"][kind][row] = (one * width).sum()
            within = one - mean.square().sum(1)
            second["two independent masks"][kind][row] = ((one - within / 2) * width).sum()
            pair = torch.zeros_like(one)
            for is_high in (False, True):
                first = ((states == 0) | ((states == 2) & is_high)).long() @ code
                other = ((states == 1) | ((states == 2) & is_high)).long() @ code
                square = ((z[first] + z[other]) / 2).square().sum(1)
                at = (p > 0.5) == is_high
                pair[at] = ((joint / p**2).T @ square)[at]
            second["MIRROR"][kind][row] = (pair * width).sum()
    found = {}
    for name, both in second.items():
        values = []
        for kind in (0, 1):
            whole = torch.stack(means[kind])
            square = whole.mean(0).square().sum() - whole.var(0).sum() / 3
            values.append((both[kind].mean() - square).item())
        found[name] = (values[0], values[1])
    return found


@pytest.mark.parametrize("name", MASK_KINDS)
def test_variances_agree_with_enumeration(report, name):
    found = {one.name: one for one in report.samplers}[f"uniform, {name}"]
    loss, gradient = exact_variances()[name]
    assert found.loss.value == pytest.approx(loss, rel=0.1)
    assert found.gradient.value == pytest.approx(gradient, rel=0.1)


def test_samplers_keep_their_order(report):
    found = {one.name: one.loss.value for one in report.samplers}
    assert found["uniform, MIRROR"] < found["uniform, two independent masks"]
    assert found["uniform, two independent masks"] < found["uniform, one mask"]
    assert found["P-POTS, one mask"] < found["uniform, one mask"]
    assert len(found) == 12
    for one in report.samplers:
        assert one.loss.low <= one.loss.value <= one.loss.high
        assert one.gradient.low <= one.gradient.value <= one.gradient.high


def test_of_a_draw_strata_are_chosen_for_they_cost_nothing(report):
    least = min(report.samplers, key=lambda one: one.cost)
    twins = [one for one in report.samplers if (one.rates, one.masks) == (least.rates, least.masks)]
    plain, strata = sorted(twins, key=lambda one: one.strata)

    def best(cost):
        figure = replace(strata.gradient, value=cost * plain.gradient.value)
        others = [one for one in report.samplers if one not in twins]
        kept = [*others, replace(plain), replace(strata, gradient=figure)]
        kept = [one for one in kept if one.cost >= min(1.0, cost) * plain.cost]
        return replace(report, samplers=kept).best.strata

    assert best(1.01) == strata.strata
    assert best(1.1) == 1
    assert best(0.9) == strata.strata


def test_parts_add_up_and_the_report_is_json(report):
    parts = report.parts
    assert list(parts) == ["A", "B", "C"]
    assert sum(part.share.value for part in parts.values()) == pytest.approx(1.0)
    assert parts["A"].share.value > 0.5
    found = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert found["forwards"] == 3 * 24 * 20 * 2
    assert found["best"] == report.best.name


def test_the_report_is_the_same_for_the_same_seed_and_works_without_parameters():
    kwargs = {"rates": 5, "masks": 2, "strata": 2}
    told = []
    first = variance_report(
        Model(), collate(ROWS), MASK_ID, **kwargs, on_row=lambda *a: told.append(a)
    )
    second = variance_report(Model(), collate(ROWS), MASK_ID, **kwargs)
    assert first.to_json() == second.to_json()
    assert first.samplers[0].gradient is None
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_fewer_coordinates_estimate_the_same_trace(monkeypatch):
    model = Model()
    kwargs = {"rates": 5, "masks": 6, "strata": 1, "parameters": [model.head.weight]}

    def traces(coordinates):
        monkeypatch.setattr(report_module, "COORDINATES", coordinates)
        found = [variance_report(model, collate(ROWS), MASK_ID, seed=n, **kwargs) for n in range(6)]
        assert {one.parameters for one in found} == {coordinates}
        return sum(one.samplers[0].gradient.value for one in found) / 6

    # 24 of 48 coordinates: without the scale the ratio would be 1/2, squared twice over 2.
    assert 0.75 < traces(24) / traces(48) < 1.35


def test_p_pots_is_what_a_training_draws_from_the_same_losses():
    model = Model()
    report = variance_report(model, collate(ROWS), MASK_ID, rates=12, masks=300)
    table = collate(ROWS)

    @torch.no_grad()
    def losses_of(noised, rows_N):
        logits = model(noised.ids_PBL[0], table.attention_XL[rows_N])
        return noised.loss([token_nll(logits, table.ids_XL[rows_N], MASK_ID)]).row_B

    draws, sizes = torch.Generator().manual_seed(1), {"rates": 12, "masks": 300}
    probe = probe_table(losses_of, *table[:2], MASK_ID, draws, noise=Noise(), **sizes)
    fit = PPots().refit(*probe)
    assert probe.t_grid.tolist() == report.t
    assert torch.allclose(fit.fine_density, report.fit.fine_density, rtol=0.15)


def test_a_model_without_losses_has_a_report():
    class Sure(Model):
        def forward(self, ids, attention):
            return 1e4 * torch.nn.functional.one_hot(torch.full_like(ids, 3), 6).float()

    rows = [{"input_ids": [1, 3, 3, 3], "prompt_length": 1}] * 2
    with pytest.warns(RuntimeWarning, match="every loss is 0"):
        found = variance_report(Sure(), collate(rows), MASK_ID, rates=5, masks=2, strata=9)
    assert found.fit.fallback
    assert all(one.loss.value == 0 for one in found.samplers)


def test_a_part_below_zero_by_chance_has_no_share():
    shares = _shares(torch.tensor([[3.0, 1.0, -1.0], [0.0, 0.0, 0.0]], dtype=torch.double))
    assert shares.tolist() == [[0.75, 0.25, 0.0], [0.0, 0.0, 0.0]]


def test_strata_share_out_the_grid():
    mass_T = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    shares = _stratum_shares(mass_T, 2)
    assert shares.sum(0).tolist() == pytest.approx([1.0] * 4)
    # Both strata hold half of the draws.
    assert (shares * mass_T).sum(1).tolist() == pytest.approx([0.5, 0.5])
    assert rate_cells(7).width_T.sum().item() == pytest.approx(1.0)
