"""Imitation and distillation on the tiny model: they learn, and cutting a batch changes nothing."""

import math

import pytest
import torch
from lab.real import supervised as sft
from lab.real.supervised import Demonstrations, Teaching, fine_tune

from burnish.config.schema import Optimiser
from burnish.errors import GuardTripped, UserError
from burnish.lm import load_model
from burnish.lm.model_input import ModelInput
from burnish.policy.answer_first import answer_kd, first_token_grade, label_tokens
from burnish.training import update
from burnish.training.data import Experts
from burnish.training.optimiser import MasterAdamW
from burnish.training.trainable import Trainable
from burnish.training.update import MicroBatcher, Updater
from expert_cases import finite, graded

TEACHER = {g: [0.7 if i == g else 0.1 for i in range(4)] for g in range(4)}
TASKS = finite([graded(i, teacher_probabilities=TEACHER[i % 4]) for i in range(12)])


def make(dtype="float32", lora=None, carry=(), **config):
    """A fresh tiny model, its experts and its optimiser."""
    trainable = Trainable(load_model("tiny", dtype=dtype, device="cpu"), lora)
    experts = Experts(TASKS, trainable.loaded.tokenizer, seed=2, carry=carry)
    named = trainable.module.named_parameters()
    return trainable, experts, MasterAdamW(named, Optimiser(**config))


def make_updater(trainable, optimiser, teaching=None, tokens=0):
    batches = MicroBatcher(trainable.module, trainable.device, tokens=tokens)
    return Updater(Demonstrations(None, batches, 0, teaching), optimiser, batches)


def teaching_for(trainable, **more):
    return Teaching(label_tokens(trainable.loaded.tokenizer, list("0123")), **more)


def weights_of(trainable):
    return [p.detach().clone() for p in trainable.module.parameters()]


def plain_loss(trainable, batch, teaching=None):
    """The loss by the book: one row at a time through the whole vocabulary."""
    module, nll, tokens, answers = trainable.module, 0.0, 0, []
    for one in batch:
        ids = torch.tensor([one.token_ids])
        logits = module.logits(module(ModelInput(ids, torch.arange(ids.shape[1])[None])))[0]
        start = one.prompt_length
        logp = logits[start - 1 : -1].log_softmax(-1).gather(1, ids[0, start:, None])[:, 0]
        first = 0 if teaching is None else 1
        nll, tokens = nll - logp[first:].sum(), tokens + len(logp) - first
        if teaching is not None:
            labels = logits[start - 1, list(teaching.label_ids)]
            answers.append(answer_kd(labels, one.info[teaching.field], teaching.temperature))
    answer = teaching.beta * torch.stack(answers).mean() if teaching is not None else 0.0
    return nll / tokens + answer


@pytest.mark.parametrize("distils", [False, True])
@pytest.mark.parametrize("budget", [1, 120, 100_000])
def test_loss_and_gradient_are_those_of_the_whole_batch(distils, budget):
    trainable, experts, optimiser = make("float64", carry=(sft.TEACHER,), clip_norm=0.0)
    teaching = teaching_for(trainable, beta=0.5, temperature=3.0) if distils else None
    batch = experts.take(0, 7)
    wanted = plain_loss(trainable, batch, teaching)
    gradients = torch.autograd.grad(wanted, list(trainable.module.parameters()))
    updater = make_updater(trainable, optimiser, teaching, budget)
    seen = {}

    def look(rate, norm):
        seen.update(zip(optimiser.names, [s.clone() for s in optimiser.sums], strict=True))

    optimiser.step = look
    done = updater.run(0, batch, 0.1)
    assert done.losses["total"] == pytest.approx(wanted.item(), rel=1e-10)
    assert (done.losses.get("answer", 0.0) > 0) == distils
    names = [name for name, _ in trainable.module.named_parameters()]
    for name, gradient in zip(names, gradients, strict=True):
        torch.testing.assert_close(seen[name], gradient, rtol=1e-8, atol=1e-12)


def test_imitation_learns_the_demonstrations():
    trainable, experts, optimiser = make()
    done = list(fine_tune(trainable, experts, optimiser, steps=25, batch=6, rate=lambda _: 1e-2))
    assert [d.step for d in done] == list(range(25))
    assert done[0].loss == pytest.approx(math.log(260), rel=0.1)
    assert done[-1].loss < 0.25 * done[0].loss


def test_distillation_learns_the_teachers_distribution():
    trainable, experts, optimiser = make(carry=(sft.TEACHER,))
    teaching = teaching_for(trainable)
    taught = fine_tune(
        trainable, experts, optimiser, teaching=teaching, steps=80, batch=12,
        rate=lambda step: 1e-2 * (1 - step / 80),
    )  # fmt: skip
    done = list(taught)
    assert done[-1].answer_loss < 0.2 * done[0].answer_loss
    assert done[-1].loss < 0.4 * done[0].loss
    batch = experts.take(0, 12)
    grades = []
    for one in batch:
        ids = torch.tensor([one.token_ids[: one.prompt_length]])
        hidden = trainable.module(ModelInput(ids, torch.arange(ids.shape[1])[None]))
        found = first_token_grade(trainable.module.logits(hidden)[0, -1], teaching.label_ids)
        grades.append(found.grade.item() == int(one.text[0]))
    assert sum(grades) >= 11


@pytest.mark.parametrize("budget", [64, 0])
def test_the_same_call_gives_the_same_weights(budget):
    results = []
    for _ in range(2):
        trainable, experts, optimiser = make()
        steps = fine_tune(
            trainable, experts, optimiser, steps=3, batch=4, rate=lambda _: 1e-2, tokens=budget
        )
        assert len(list(steps)) == 3
        results.append(weights_of(trainable))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_full_device_gets_smaller_passes(monkeypatch):
    trainable, experts, optimiser = make()
    whole = make_updater(*make()[::2], None, 4096).run(0, experts.take(0, 8), 0.0)
    scores, calls = sft.token_scores, []

    def crowded(model, packed, temperature):
        calls.append(packed.ids_RS.numel())
        if packed.ids_RS.numel() > 300:
            raise torch.OutOfMemoryError("full")
        return scores(model, packed, temperature)

    monkeypatch.setattr(sft, "token_scores", crowded)
    updater = make_updater(trainable, optimiser, None, 4096)
    done = updater.run(0, experts.take(0, 8), 0.0)
    assert max(calls) > 300
    assert updater.batches.tokens <= 512
    assert done.losses["total"] == pytest.approx(whole.losses["total"], rel=1e-5)
    monkeypatch.setattr(update, "LEAST_BUDGET", 4096)
    updater.batches.tokens = 4096
    with pytest.raises(UserError, match="out of device memory with micro-batches of 4096 tokens"):
        updater.run(1, experts.take(0, 8), 0.0)


def test_a_number_that_is_not_finite_never_reaches_the_weights():
    trainable, experts, optimiser = make()
    with torch.no_grad():
        next(iter(trainable.module.parameters()))[40:].fill_(math.nan)
    before = weights_of(trainable)
    with pytest.raises(GuardTripped, match="logprob guard"):
        next(fine_tune(trainable, experts, optimiser, steps=1, batch=2, rate=lambda _: 1e-2))
    after = weights_of(trainable)
    assert all(torch.equal(a, b) for a, b in zip(before[1:], after[1:], strict=True))
