"""The prediction of a cluster's step: worked numbers of each part, and what must always hold."""

import pytest

from burnish.engines.plan import GPUS, SIZES, Gpu, Job, Sizes, predict, render

TOY = Sizes("toy", 1e9, 10, 1000, 40_000, 50_000)
ROUND = Gpu("round", 100e9, 1e12, 1e14, 1e11, 1e10)
STEP = Job(prompts=4, samples=8, prompt_tokens=100, mean_tokens=1000, most_tokens=2000)


def parts(plan):
    return {part.name: part.value for part in (*plan.seconds, *plan.memory)}


def test_worked_numbers_of_one_gpu():
    plan = predict(TOY, ROUND, 1, STEP)
    found = parts(plan)
    assert found["weights"] == found["gradients"] == 4e9
    assert found["moments"] == 8e9
    assert found["keys and values"] == 32 * 1100 * 40_000
    assert found["sampling: chain"] == pytest.approx(2000 * 10 * 0.87e-3 / 30)
    assert found["sampling: weights"] == pytest.approx(2000 * 2e9 / 0.47e12)
    assert found["sampling: caches"] == pytest.approx(32_000 * 600 * 40_000 / 0.47e12)
    assert found["sampling: prompts"] == pytest.approx(2e9 * 100 * 4 / 0.225e14)
    assert found["log-probs"] == pytest.approx(2e9 * 35_200 / 0.225e14)
    assert found["training"] == pytest.approx(6e9 * 35_200 / 0.225e14)
    assert found["activations"] == 34 * 10 * 16_384 * 1000
    assert found["new weights"] == found["sampling: network"] == 0
    assert plan.step_s == pytest.approx(sum(part.value for part in plan.seconds))
    assert plan.tokens_a_gpu == pytest.approx(35_200 / plan.step_s)
    assert plan.peak == pytest.approx(16e9 + 34e4 * 16_384 + 4e8 + 8 * 1024 * 50_000)


def test_more_gpus_share_the_weights_and_meet_over_the_slower_link():
    inside, outside = (predict(TOY, ROUND, count, STEP) for count in (8, 16))
    assert parts(inside)["moments"] == 1e9
    assert parts(inside)["new weights"] == pytest.approx(2e9 * 7 / 8 / 1e11)
    # 2,200 tokens a GPU are one pass: what FSDP gathers takes longer than the products.
    assert parts(outside)["training"] == pytest.approx(8e9 * 15 / 16 / 1e10)
    assert parts(outside)["training"] > 6e9 * 2200 / 0.225e14


def test_what_does_not_fit_is_told():
    large = predict(SIZES["32b"], GPUS["h200"], 1, Job(recompute=True))
    assert not large.fits
    assert large.peak > 16 * 32.8e9
    assert "does not fit" in render(large)
    assert predict(SIZES["7b"], GPUS["h200"], 8, Job(recompute=True)).fits
    assert render(large).startswith("PREDICTION, not measured: 32b on 1 x h200")


def test_a_public_figure_of_32_gpus_is_met_within_a_fifth():
    """NeMo RL 0.4, GRPO of Qwen3-32B on 4 x 8 H100: 393 s a step, 540 tokens/s a GPU (Megatron)."""
    qwen = Sizes("qwen3-32b", 32.8e9, 64, 5120, 262_144, 151_936)
    job = Job(prompts=64, samples=32, prompt_tokens=206, mean_tokens=3000, most_tokens=3890)
    plan = predict(qwen, GPUS["h100"], 32, job)
    assert plan.step_s == pytest.approx(393, rel=0.2)
    llama = Sizes("llama-8b", 8.03e9, 32, 4096, 131_072, 128_256)
    job = Job(prompts=64, samples=32, prompt_tokens=206, mean_tokens=854, most_tokens=3890)
    assert predict(llama, GPUS["h100"], 16, job).step_s == pytest.approx(97.7, rel=0.2)
