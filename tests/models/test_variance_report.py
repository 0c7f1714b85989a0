"""The variance report against a model whose moments are known, and against plain draws."""

import json

import pytest
import torch

from burnish.errors import ArgumentError
from burnish.models.masked_diffusion import build_noise, collate, token_nll, variance_report
from burnish.models.masked_diffusion.report import _stratum_weights

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
    found = collate([*ROWS, {"input_ids": [1, 2], "prompt_length": 2}], max_length=6, pad_id=0)
    assert found.dropped == 1
    assert found.ids_XL.shape == (3, 6)
    assert found.eligible_XL.sum(1).tolist() == [5, 4, 4]
    assert found.attention_XL.sum(1).tolist() == [6, 5, 6]
    with pytest.raises(ArgumentError, match="none of 1 has an answer within 2 tokens"):
        collate([{"ids": [1, 2, 3], "prompt_len": 2}], max_length=2)


@pytest.fixture(scope="module")
def report():
    model = Model()
    return variance_report(
        model, ROWS, MASK_ID, parameters=[model.head.weight], rates=12, masks=40, strata=4
    )


def drawn_variance(passes, masks):
    """Variance of a row's loss and trace of its gradient by plain draws at uniform rates."""
    model, table = Model(), collate(ROWS)
    noise, generator = build_noise(masks=masks, passes=passes), torch.Generator().manual_seed(5)
    count = 1500
    pick = torch.arange(count) % 3
    ids, eligible, attention = (part[pick] for part in table[:3])
    u_B, u_FBL = noise.rate_uniforms(count, generator), noise.mask_uniforms(count, 7, generator)
    noised = noise.corrupt(ids, eligible, u_B, u_FBL, MASK_ID)
    nll = [token_nll(model(one, attention), ids, MASK_ID) for one in noised.ids_PBL]
    rows = noised.loss(nll).row_B
    grads = [
        torch.autograd.grad(row, model.head.weight, retain_graph=True)[0].flatten() for row in rows
    ]
    return rows.var().item(), torch.stack(grads).var(0).sum().item()


@pytest.mark.parametrize(
    ("name", "passes", "masks"),
    [
        ("uniform, one mask", 1, "independent"),
        ("uniform, two independent masks", 2, "independent"),
        ("uniform, MIRROR", 1, "mirror"),
    ],
)
def test_variances_agree_with_plain_draws(report, name, passes, masks):
    found = {one.name: one for one in report.samplers}[name]
    loss, gradient = drawn_variance(passes, masks)
    assert found.loss.value == pytest.approx(loss, rel=0.25)
    assert found.gradient.value == pytest.approx(gradient, rel=0.25)


def test_samplers_keep_their_order(report):
    found = {one.name: one.loss.value for one in report.samplers}
    assert found["uniform, MIRROR"] < found["uniform, two independent masks"]
    assert found["uniform, two independent masks"] < found["uniform, one mask"]
    assert found["P-POTS, one mask"] < found["uniform, one mask"]
    assert len(found) == 12
    for one in report.samplers:
        assert one.loss.low <= one.loss.value * 1.5
        assert one.gradient.low <= one.gradient.high
    assert report.best.cost == min(one.cost for one in report.samplers)


def test_parts_add_up_and_the_report_is_json(report):
    parts = report.parts
    assert list(parts) == ["A", "B", "C"]
    assert sum(part.share.value for part in parts.values()) == pytest.approx(1.0)
    assert parts["A"].share.value > 0.5
    found = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert found["forwards"] == 3 * 12 * 40 * 2
    assert found["best"] == report.best.name


def test_the_report_is_the_same_for_the_same_seed_and_works_without_parameters():
    kwargs = {"rates": 5, "masks": 2, "strata": 2}
    told = []
    first = variance_report(Model(), ROWS, MASK_ID, **kwargs, on_row=lambda *a: told.append(a))
    second = variance_report(Model(), ROWS, MASK_ID, **kwargs)
    assert first.to_json() == second.to_json()
    assert first.samplers[0].gradient is None
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_fewer_coordinates_estimate_the_same_trace():
    model = Model()
    kwargs = {"rates": 5, "masks": 6, "strata": 1, "parameters": [model.head.weight]}
    whole = variance_report(model, ROWS, MASK_ID, **kwargs)
    some = variance_report(model, ROWS, MASK_ID, **kwargs, coordinates=24)
    assert some.parameters == 24
    ratio = some.samplers[0].gradient.value / whole.samplers[0].gradient.value
    assert 0.4 < ratio < 2.5


def test_strata_share_out_the_grid():
    p_T = torch.tensor([0.4, 0.8, 1.2, 1.6], dtype=torch.float64)
    weights = _stratum_weights(p_T, 2)
    assert weights.sum(0).tolist() == pytest.approx([0.25] * 4)
    # Both strata hold half of the draws.
    assert (weights * p_T).sum(1).tolist() == pytest.approx([0.5, 0.5])


def test_too_little_is_refused():
    with pytest.raises(ArgumentError, match="at least 2 to tell data noise"):
        variance_report(Model(), ROWS[:1], MASK_ID)
    with pytest.raises(ArgumentError, match="parameters: expected tensors that require"):
        variance_report(Model(), ROWS, MASK_ID, parameters=[torch.zeros(3)])
