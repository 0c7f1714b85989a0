import json

import pytest
import torch
from training_cases import SMALL, assert_same, finish, merged, outcome, stop_after

from burnish.config import Config, load
from burnish.errors import GuardTripped, UserError
from burnish.lm import load_model
from burnish.lm.folder import save_model
from burnish.lm.model_input import ModelInput
from burnish.policy import distil_loss, sampled_kl
from burnish.records import Message, Task
from burnish.store import RunStore
from burnish.training import build
from burnish.training.events import HeldOut, StepDone
from burnish.training.teacher import teacher_prompt

HINTED = {"teacher": "start", "template": "{prompt} ({hint})"}
GIVEN = {"answers": "given", "field": "answer"}
SETTINGS = {
    "reverse": {},
    "forward": {"divergence": "forward", "temperature": 1.5},
    "sampled": {"divergence": "sampled", "samples": 2},
    "top": {"top_k": 7},
    "given": GIVEN,
    "follows": {"teacher": "student", "divergence": "forward", "top_k": 3},
}


def write_tasks(folder, count=9):
    rows = [
        {"question": f"item {i}?", "hint": "it is " + "abc"[i % 3] * 4, "answer": "abc"[i % 3] * 3}
        for i in range(count)
    ]
    path = folder / "tasks.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "kind": "file",
        "path": str(path),
        "prompt": "question",
        "fields": {"hint": "hint", "answer": "answer"},
        "held_out": {"by": "share", "share": 0.3},
    }


def run_of(folder, *tables, run="run", **train):
    small = {key: value for key, value in SMALL.items() if key != "rewards"}
    settings = {"kind": "distil", "batch": 3, **HINTED, **train}
    config = load(
        Config, {"task": write_tasks(folder), **merged(small, {"train": settings}, *tables)}
    )
    return build(config, folder / run, root=folder)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """A model folder whose distributions differ from the tiny model's."""
    loaded = load_model("tiny", dtype="float32", device="cpu")
    with torch.no_grad():
        for p in loaded.module.parameters():
            p.mul_(2.5)
    return str(save_model(loaded, tmp_path_factory.mktemp("teacher") / "model"))


def logits_of(model, one):
    """Logits that predict each token of an answer, one row at a time."""
    ids = torch.tensor([one.token_ids])
    logits = model.logits(model(ModelInput(ids, torch.arange(ids.shape[1])[None])))[0]
    return logits[one.prompt_length - 1 : -1]


def plain_loss(algorithm, batch):
    """The mean divergence over all answer tokens, by the book."""
    settings, module = algorithm.settings, algorithm.setup.trainable.module
    own = torch.cat([logits_of(module, one) for one in batch.student])
    with algorithm.teacher.model(module) as teacher, torch.no_grad():
        other = torch.cat([logits_of(teacher, one) for one in batch.teacher])
    if settings.divergence == "sampled":
        ids = torch.tensor([t for one in batch.student for t in one.token_ids[one.prompt_length :]])
        pick = [logits.log_softmax(-1).gather(1, ids[:, None])[:, 0] for logits in (own, other)]
        return sampled_kl(*pick).mean()
    return distil_loss(
        own,
        other,
        torch.ones(len(own)),
        settings.divergence,
        temperature=settings.temperature,
        top_k=settings.top_k,
    )


CUTS = [("reverse", tokens, share) for tokens in (1, 60, 100_000) for share in (True, False)]


@pytest.mark.parametrize(
    ("name", "tokens", "share"), CUTS + [(name, 60, True) for name in SETTINGS if name != "reverse"]
)
def test_loss_and_gradient_are_those_of_the_whole_batch(tmp_path, name, tokens, share):
    tables = {"model": {"dtype": "float64"}, "update": {"share_prompts": share}}
    trainer = run_of(tmp_path, tables, **{"samples": 3, **SETTINGS[name]})
    algorithm, module = trainer.algorithm, trainer.trainable.module
    with torch.no_grad():  # away from the teacher
        for p in module.parameters():
            p.add_(0.3 * p * torch.linspace(-1, 1, p.shape[-1], dtype=p.dtype))
    batch = algorithm.batch(0)
    wanted = plain_loss(algorithm, batch)
    assert name == "follows" or abs(wanted) > 1e-4
    gradients = torch.autograd.grad(wanted, list(module.parameters()))
    losses = [algorithm.loss(module, micro) for micro in algorithm.micro_batches(batch, tokens)]
    total = sum(loss.total for loss in losses)
    torch.testing.assert_close(total, wanted, rtol=1e-5, atol=1e-9)
    found = torch.autograd.grad(total, list(module.parameters()))
    torch.testing.assert_close(found, gradients, rtol=1e-4, atol=1e-8)
    trainer.store.close()


def test_the_teacher_reads_the_same_tokens_behind_its_own_prompt(tmp_path):
    trainer = run_of(tmp_path, samples=2)
    batch = trainer.algorithm.batch(0)
    tokenizer = trainer.trainable.loaded.tokenizer
    for task, student, teacher in zip(batch.tasks, batch.student, batch.teacher, strict=True):
        asked = [Message("user", f"{task.messages[0].content} ({task.fields['hint']})")]
        assert list(teacher.token_ids[: teacher.prompt_length]) == tokenizer.render(asked)
        assert list(student.token_ids[: student.prompt_length]) == tokenizer.render(task.messages)
        answers = [one.token_ids[one.prompt_length :] for one in (student, teacher)]
        assert answers[0] == answers[1]
    for micro in trainer.algorithm.micro_batches(batch, 100):
        assert torch.equal(micro.student.target_N, micro.teacher.target_N)
        assert torch.equal(micro.student.rollout_N, micro.teacher.rollout_N)
    trainer.store.close()


def test_an_empty_context_has_no_loss_and_no_gradient(tmp_path):
    trainer = run_of(tmp_path, teacher="student", template="{prompt}")
    algorithm, module = trainer.algorithm, trainer.trainable.module
    (micro,) = algorithm.micro_batches(algorithm.batch(0), 10_000)
    loss = algorithm.loss(module, micro).total
    loss.backward()
    assert abs(loss.item()) < 1e-7
    assert max(p.grad.abs().max().item() for p in module.parameters()) < 1e-6
    trainer.store.close()


@pytest.mark.parametrize("name", ["reverse", "forward", "sampled", "given"])
def test_the_divergence_to_another_model_falls(tmp_path, teacher, name):
    more = {"reverse": {}, **SETTINGS}[name]
    tables = {"steps": 15, "optimiser": {"learning_rate": 3e-3}, "evaluation": {"prompts": 3}}
    samples, share = (32, 0.85) if name == "sampled" else (2, 0.7)
    more = {**more, "teacher": teacher, "template": "", "temperature": 1.0, "samples": samples}
    events = finish(run_of(tmp_path, tables, **more))
    held_out = [event for event in events if isinstance(event, HeldOut)]
    assert {event.measure for event in held_out} == {"loss"}
    steps = [event.metrics for event in events if isinstance(event, StepDone)]
    assert steps[0]["kl/teacher"] == pytest.approx(steps[0]["loss/total"])
    first = sum(m["kl/teacher"] for m in steps[:3])
    last = sum(m["kl/teacher"] for m in steps[-3:])
    assert last < share * first
    if name != "sampled":  # a few samples of three prompts say little
        assert held_out[-1].score.value < 0.7 * held_out[0].score.value
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        stored = store.rollouts(14)
    tokens = sum(sample.trajectory.trained_tokens for sample in stored)
    total = -sum(sample.reward.value * sample.trajectory.trained_tokens for sample in stored)
    assert total / tokens == pytest.approx(steps[-1]["kl/teacher"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory, teacher):
    """Runs without a stop, by name."""
    made = {}
    for name in ("reverse", "given"):
        folder = tmp_path_factory.mktemp(name)
        finish(run_of(folder, {"evaluation": {"every": 2}}, **SETTINGS[name], teacher=teacher))
        made[name] = outcome(folder / "run")
    return made


@pytest.mark.parametrize(("every", "stop"), [(1, 3), (2, 3), (0, 2)])
@pytest.mark.parametrize("name", ["reverse", "given"])
def test_stopped_and_continued_equals_uninterrupted(tmp_path, teacher, whole, name, every, stop):
    more = {"checkpoint": {"every": every, "keep": 1}, "evaluation": {"every": 2}}
    settings = {**SETTINGS[name], "teacher": teacher}
    stop_after(run_of(tmp_path, more, **settings), stop, saved=every == 1)
    events = finish(run_of(tmp_path, more, **settings))
    reread = [event.step for event in events if isinstance(event, StepDone) and event.reused]
    assert reread == ({0: [0, 1], 1: [], 2: [2]}[every] if name == "reverse" else [])
    assert_same(outcome(tmp_path / "run"), whole[name])


def test_the_context_of_the_teacher():
    def asked(**settings):
        from burnish.config.schema import DistilTrain

        task = Task("t", (Message("system", "Be kind."), Message("user", "1 + 1?")), {"hint": "2"})
        return [(m.role, m.content) for m in teacher_prompt(task, DistilTrain(**settings))]

    assert asked(system="Be short.") == [("system", "Be short."), ("user", "1 + 1?")]
    shown = asked(template="{prompt} It is {hint}.")
    assert shown == [("system", "Be kind."), ("user", "1 + 1? It is 2.")]
    with pytest.raises(UserError, match=r"no 'answer' in this row \(task t\); expected .* hint"):
        asked(template="{prompt} {answer}")


def test_a_divergence_that_is_not_finite_stops_before_the_weights_move(tmp_path):
    trainer = run_of(tmp_path)
    before = {name: p.clone() for name, p in trainer.trainable.module.named_parameters()}
    measure = trainer.algorithm._divergence
    trainer.algorithm._divergence = lambda *given: measure(*given) * float("nan")
    trainer.algorithm.evaluate = lambda step: None
    with pytest.raises(GuardTripped, match="divergence is nan at step 1"):
        finish(trainer)
    for name, p in trainer.trainable.module.named_parameters():
        assert torch.equal(p, before[name])
