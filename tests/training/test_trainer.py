import json
import math
from pathlib import Path

import pytest
from method_cases import SHOWN
from training_cases import finish, outcome, stop_after, trainer

from burnish.config import Config, load
from burnish.errors import GuardTripped, UserError
from burnish.store import RunStore
from burnish.training import build, replay
from burnish.training.events import Finished, HeldOut, StepDone

TOY = '''\
"""A toy: raise the likelihood of a word, scaled by a parameter that is learned too."""

import torch
from burnish.records import Author, Span, Trajectory
from burnish.training.algorithm import Algorithm, AlgorithmState, HeldOutScores, Loss, StepReport
from burnish.training.packing import token_scores


class Toy(Algorithm):
    def __init__(self, setup, settings):
        self.setup, self.word = setup, settings["word"]
        self.broken_at = settings.get("broken_at", -1)
        self.scale = torch.nn.Parameter(torch.ones(()))
        self.seen = 0.0

    @classmethod
    def check(cls, config, settings, data):
        data.tasks.train(0)

    def batch(self, step):
        ids = self.setup.seeds.rng("toy", step).sample(range(30, 90), 4)
        answer = self.setup.trainable.loaded.tokenizer.encode(self.word)
        logprobs = (0.0,) * len(answer)
        return [
            Trajectory(
                id=f"{step}.{i}",
                task_id="toy",
                group=str(i),
                spans=(
                    Span(Author.PROMPT, (i, i + 1)),
                    Span(Author.MODEL, tuple(answer), logprobs, trainable=True),
                ),
                text=self.word,
            )
            for i in ids
        ]

    def micro_batches(self, batch, tokens):
        for packed in self.setup.batches.split(batch, tokens=tokens):
            yield packed, [batch[i].id for i in packed.members], len(batch)

    def loss(self, model, micro):
        packed, ids, count = micro
        logp_BT = token_scores(model, packed, 1.0).logp_BT
        total = -self.scale * logp_BT.sum() / count
        if ids[0].startswith(f"{self.broken_at}."):
            total = total * torch.nan
        return Loss(total, ids, {"word": total.detach()}, sums={"logp": logp_BT.detach().sum()})

    def finish(self, step, batch, result):
        self.seen += float(result.sums["logp"])
        return StepReport({"toy/seen": self.seen})

    def evaluate(self, step):
        return HeldOutScores([-self.seen, None], "loss")

    def parameters(self):
        return [("toy.scale", self.scale)]

    def state(self):
        return AlgorithmState({"seen": self.seen}, {"scale": self.scale.detach()})

    def restore(self, state):
        self.seen = state.values["seen"]
'''


RATE = {"optimiser": {"learning_rate": 1e-2}}


def toy(folder: Path, **options):
    """What a user adds: one file with the class, and one table in the recipe."""
    (folder / "toy.py").write_text(TOY)
    train = {"kind": "function", "path": "toy.py:Toy", "options": {"word": "no", **options}}
    return {"train": train, "rewards": [], "checkpoint": {"every": 2}, **RATE}


def steps_of(events, stage=""):
    return [e for e in events if isinstance(e, StepDone) and e.stage == stage]


def test_an_algorithm_is_one_file_and_one_table(tmp_path):
    events = finish(trainer(tmp_path, toy(tmp_path)))
    losses = [e.metrics["loss/word"] for e in steps_of(events)]
    assert losses[-1] < 0.8 * losses[0]
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        seen = [point.value for point in store.metrics("toy/seen")["toy/seen"]]
        assert len(seen) == len(store.steps()) == 6
    held = [e for e in events if isinstance(e, HeldOut)]
    assert [(e.measure, e.valid, e.count) for e in held] == [("loss", 1, 2)] * 2
    assert held[-1].score.value == -seen[-1]
    assert isinstance(events[-1], Finished)


@pytest.mark.parametrize("stop", [2, 3])
def test_an_added_algorithm_is_resumed_bit_for_bit(tmp_path, stop):
    """Also a step that was done after the newest checkpoint."""
    finish(trainer(tmp_path, toy(tmp_path), run="whole"))
    stop_after(trainer(tmp_path, toy(tmp_path)), stop, saved=stop == 2)
    finish(trainer(tmp_path, toy(tmp_path)))
    assert outcome(tmp_path / "run", "toy/seen") == outcome(tmp_path / "whole", "toy/seen")


def test_an_added_algorithm_is_guarded_and_its_crash_replayed(tmp_path):
    trained = trainer(tmp_path, toy(tmp_path, broken_at=3))
    with pytest.raises(GuardTripped) as caught:
        finish(trained)
    line, _, place = str(caught.value).partition(" Saved; see it again: burnish replay ")
    assert line.startswith("loss guard: word is nan at step 4 (samples 3.")
    assert replay(Path(place)) == line


# --- supervised fine-tuning as a run

SFT = {
    "task": SHOWN,
    "rewards": [],
    "train": {"kind": "sft", "batch": 4},
    "optimiser": {"learning_rate": 3e-3},
    "checkpoint": {"every": 2},
}


def test_sft_is_a_run_of_its_own(tmp_path):
    events = finish(trainer(tmp_path, SFT))
    losses = [e.metrics["loss/total"] for e in steps_of(events)]
    assert losses[0] == pytest.approx(math.log(260), rel=0.1)
    assert losses[-1] < 0.9 * losses[0]
    last = events[-1]
    assert (last.status, last.measure) == ("finished", "loss")
    assert last.change.high < 0, "the held-out loss fell"
    assert (tmp_path / "run" / "checkpoints" / "step-000006" / "model.safetensors").is_file()


def test_sft_with_rewards_is_evaluated_by_them(tmp_path):
    table = {k: v for k, v in SFT.items() if k != "rewards"}
    events = finish(trainer(tmp_path, table, {"steps": 1}))
    held = [e for e in events if isinstance(e, HeldOut)]
    assert [e.measure for e in held] == ["reward", "reward"]


def test_sft_is_resumed_bit_for_bit(tmp_path):
    finish(trainer(tmp_path, SFT, run="whole"))
    stop_after(trainer(tmp_path, SFT), 3)
    finish(trainer(tmp_path, SFT))
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_sft_from_python_and_from_a_recipe_are_the_same(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        'steps = 2\ntrain = { kind = "sft", batch = 2 }\n'
        f'task = {{ kind = "function", path = {json.dumps(SHOWN["path"])} }}\n'
        'model = { path = "tiny", device = "cpu", threads = 1 }\nevaluation = { prompts = 2 }\n'
    )
    found = build(load(Config, file), tmp_path / "run")
    assert found.stage.algorithm.size == 2
    assert steps_of(finish(found))[1].metrics["length/tokens"] > 0


# --- stages

STAGED = {
    "task": SHOWN,
    "steps": 2,
    "stages": [
        {"name": "first", "steps": 5, "checkpoint_every": 2, "train": {"kind": "sft", "batch": 2}},
        {"name": "second", "steps": 2, "train": {"kind": "sft", "batch": 3}},
    ],
}


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("staged")
    return finish(trainer(folder, STAGED)), folder / "run"


def test_stages_run_in_order_on_the_same_weights(staged):
    events, folder = staged
    named = [(e.stage, e.step) for e in events if isinstance(e, StepDone)]
    first, second = [("first", i) for i in range(5)], [("second", i) for i in range(2)]
    assert named == [*first, *second, ("", 0), ("", 1)]
    losses = [e.metrics["loss/total"] for e in events if isinstance(e, StepDone) and e.stage]
    assert losses[-1] < losses[0]
    for name in ("first", "second"):
        assert [p.name for p in (folder / "stages" / name).iterdir()] == ["final"]
    with RunStore.open(folder, read_only=True) as store:
        curves = store.metrics()
        assert store.steps() == [0, 1]
    assert len(curves["stage/first/loss/total"]) == 5
    assert len(curves["loss/total"]) == 2
    assert [e.step for e in events if isinstance(e, HeldOut)] == [0, 2]


def stop_in(trained, stage, steps):
    for event in trained.run():
        if isinstance(event, StepDone) and (event.stage, event.step + 1) == (stage, steps):
            break
    trained.store.close()


@pytest.mark.parametrize(
    ("stage", "steps", "saved"), [("first", 3, 2), ("first", 5, 4), ("second", 1, 0), ("", 1, 0)]
)
def test_a_run_stopped_in_a_stage_is_resumed_bit_for_bit(tmp_path, staged, stage, steps, saved):
    stop_in(trainer(tmp_path, STAGED), stage, steps)
    again = trainer(tmp_path, STAGED)
    assert (again.stage.name, again.state.step) == (stage, saved)
    finish(again)
    assert outcome(tmp_path / "run") == outcome(staged[1])
    for name in ("first", "second"):
        ours, theirs = (f / "stages" / name / "final" for f in (tmp_path / "run", staged[1]))
        file = "model.safetensors"
        assert (ours / file).read_bytes() == (theirs / file).read_bytes()


def test_adapters_of_a_stage_are_merged_before_the_next(tmp_path):
    pytest.importorskip("peft")
    table = {**STAGED, "model": {"lora": {"rank": 2, "targets": ["q_proj"]}}}
    table["policy"] = {"auxiliary": [{"kind": "kl", "coefficient": 0.1}]}
    finish(trainer(tmp_path, table, run="whole"))
    stop_in(trainer(tmp_path, table), "second", 1)
    finish(trainer(tmp_path, table))
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_a_guard_in_a_stage_is_replayed(tmp_path, monkeypatch):
    from burnish.training.algorithms import sft

    real, calls = sft.masked_nll, []

    def broken(*arguments, **more):
        calls.append(1)
        return real(*arguments, **more) * (math.nan if len(calls) > 2 else 1.0)

    monkeypatch.setattr(sft, "masked_nll", broken)
    with pytest.raises(GuardTripped) as caught:
        finish(trainer(tmp_path, STAGED))
    line, _, place = str(caught.value).partition(" Saved; see it again: burnish replay ")
    assert place.endswith("crash/first-step-000003")
    assert line.startswith("loss guard: loss is nan at step 3 (samples ")
    assert replay(Path(place)) == line


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([{"name": "a/b"}], "expected up to 60 letters"),
        ([{}, {}], "stages: got the names warm_start, warm_start, expected different ones"),
        ([{"train": {"kind": "policy"}}], "can only be the main training"),
    ],
)
def test_stages_that_make_no_sense_are_refused(tmp_path, stages, message):
    with pytest.raises(UserError, match=message):
        trainer(tmp_path, {"stages": stages})
