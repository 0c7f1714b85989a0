import pytest
import torch
from training_cases import (
    assert_same,
    finish,
    finish_with_stops,
    outcome,
    resolved,
    reward,
    trainer,
)

from burnish.errors import UserError
from burnish.lm.diffusion.masked_rows import likelihood_bound
from burnish.store import RunStore
from burnish.training import build

SMALL = {
    "steps": 2,
    "model": {"path": "diffusion:tiny"},
    "train": {"kind": "diffusion_policy", "masks": 3, "canvas": 4, "decoding": "block=4"},
    "rewards": [reward("letters")],
    "policy": {"ratio": "sequence", "aggregate": {"mode": "seq-mean-token-mean"}},
    "rollout": {"prompts": 2, "samples": 4, "max_tokens": 4},
    "evaluation": {"prompts": 2},
}


def made(folder, **more):
    one = trainer(
        folder, {**SMALL, "model": {"path": "diffusion:tiny", "dtype": "float64"}, **more}
    )
    return one, one.stage.algorithm


def test_shares_add_up_to_the_bound_under_the_steps_masks(tmp_path):
    one, algorithm = made(tmp_path)
    batch = algorithm.batch(0)
    micro = next(algorithm._cut(batch, range(len(batch.trajectories)), 10_000))
    with torch.no_grad():
        share_BT, bound_BK = algorithm.estimate(algorithm.batches.model, micro)
    for row, i in enumerate(micro.members):
        shown = batch.trajectories[i]
        seed = algorithm.seeds.for_("bound", 0, i)
        prompt = shown.token_ids[: shown.prompt_length]
        answer = shown.token_ids[shown.prompt_length :]
        (wanted,) = likelihood_bound(
            algorithm.batches.model,
            [(prompt, answer)],
            samples=3,
            seed=seed,
            canvas=4,
            end=algorithm.end,
        )
        assert share_BT[row].sum().item() == pytest.approx(wanted.logprob, abs=1e-9)
        assert bound_BK[row].mean().item() == pytest.approx(
            wanted.logprob / len(wanted.tokens), abs=1e-9
        )
    one.store.close()


def test_an_answer_that_was_cut_off_gets_no_end_that_it_never_wrote(tmp_path):
    train = {**SMALL["train"], "canvas": 8}
    one, algorithm = made(tmp_path, train=train)
    mask = algorithm.batches.model.architecture.mask_id
    is_cut = []
    for shown in algorithm.batch(0).trajectories:
        row = algorithm.row(shown)
        is_cut.append(shown.token_ids[-1] != algorithm.end)
        if is_cut[-1]:
            assert row.count == shown.trained_tokens
            assert set(row.ids[len(shown.token_ids) :]) == {mask}
        else:
            assert row.count == 8
        assert len(row.ids) == shown.prompt_length + 8
    one.store.close()
    assert any(is_cut)


def test_the_gradient_is_that_of_the_advantage_times_the_bound(tmp_path):
    one, algorithm = made(tmp_path)
    batch = algorithm.batch(0)
    updates = algorithm.updates(batch)
    assert updates
    (update,) = updates
    module = algorithm.batches.model
    parameter = next(iter(module.parameters()))
    module.zero_grad()
    for micro in algorithm.micro_batches(update, 64):
        algorithm.loss(module, micro).total.backward()
    found = parameter.grad.clone()
    module.zero_grad()
    total = 0.0
    for i in update.members:
        micro = next(algorithm._cut(update, [i], 10_000))
        share_BT, _ = algorithm.estimate(module, micro)
        per_token = share_BT.sum() / batch.trajectories[i].trained_tokens
        total = total - batch.values.values_B[i] * per_token / update.normaliser.rollouts
    total.backward()
    one.store.close()
    assert torch.allclose(found, parameter.grad, atol=1e-10)


def test_several_updates_begin_at_ratio_one_and_a_run_goes_on_bit_by_bit(tmp_path):
    more = {"update": {"epochs": 2}, "checkpoint": {"every": 1}}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    finish(trainer(tmp_path / "a", {**SMALL, **more}))
    finish_with_stops(lambda: trainer(tmp_path / "b", {**SMALL, **more}), 1)
    assert_same(outcome(tmp_path / "b" / "run"), outcome(tmp_path / "a" / "run"))
    with RunStore.open(tmp_path / "a" / "run", read_only=True) as store:
        metrics = store.metrics()
    # Epochs that follow are off by what the first one moved.
    assert metrics["policy/ratio_max"][0].value > 1
    assert metrics["diffusion/bound_error"][0].value > 0
    assert metrics["diffusion/bound"][0].value < 0


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (
            {"policy": {"ratio": "token"}},
            r"policy.ratio: 'token' compares .* use ratio = 'sequence'",
        ),
        (
            {"policy": {"ratio": "sequence", "auxiliary": [{"kind": "kl", "coefficient": 0.1}]}},
            "policy.auxiliary: .* single tokens",
        ),
        ({"policy": {"ratio": "sequence", "surrogate": {"kind": "cispo"}}}, "policy.surrogate"),
        (
            {"policy": {"ratio": "sequence", "correction": {"kind": "truncated"}}},
            "policy.correction",
        ),
        ({"rollout": {"temperature": 0.7}}, "rollout.temperature is 0.7"),
        ({"train": {"kind": "policy"}}, "model.path: .* has no next token"),
        (
            {"train": {"kind": "diffusion_policy", "canvas": 8, "decoding": "canvas=4"}},
            "train.decoding has canvas=4, and rows are trained with a canvas of 8",
        ),
    ],
)
def test_what_is_unsound_is_refused_with_the_reason(tmp_path, given, what):
    config = resolved(tmp_path, {**SMALL, **given})
    with pytest.raises(UserError, match=what):
        build(config, tmp_path / "run", root=tmp_path)
