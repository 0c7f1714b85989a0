import importlib.util
import random

import anyio
from training_cases import ROOT, finish, reward, trainer

from burnish.config import Config, load
from burnish.config.recipes import find_recipe
from burnish.records import Message, Response, Task
from burnish.rewards.config import build as build_reward
from burnish.step_warnings import watch_of
from burnish.store import RunStore
from burnish.training.events import Finished, StepDone
from burnish.view.pages.premises import premises_view

PRICES = ROOT / "recipes" / "evpv" / "prices.py"


def load_file(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def evpv(**options):
    return {"kind": "evpv", "options": {"verifier": "none", "split": "lines", **options}}


def settings(*rewards):
    return {
        "task": {"kind": "function", "path": f"{PRICES}:make"},
        "rewards": list(rewards),
        "policy": {
            "advantage": {"kind": "stepwise", "rewards": ["evpv", "letters"], "split": "lines"},
            "aggregate": {"mode": "token-mean"},
        },
        "rollout": {"prompts": 2, "samples": 8, "max_tokens": 48},
        "steps": 1,
    }


def test_steps_are_credited_with_their_own_score(tmp_path):
    given = settings(evpv(), reward("letters", weight=0.5))
    events = finish(trainer(tmp_path, given))
    assert isinstance(events[-1], Finished)
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        assert "reward/evpv/mean" in store.metrics()
        samples = [one for one in store.samples() if one.split == "train"]
    parts = [sample.reward.parts[0] for sample in samples]
    assert all(part.name == "evpv" for part in parts)
    written = [part for part in parts if part.value is not None]
    assert written
    assert all(0 <= part.value <= 1 and part.parts[0].name == "step 1" for part in written)
    for sample in samples:  # the viewer reads whatever was stored
        premises_view(sample)


def test_the_recipe_pays_for_prices_that_stand_in_the_list():
    prices = load_file(PRICES)
    (table, *_) = load(Config, find_recipe("evpv")).value.rewards
    scorer = build_reward(table)
    for seed in range(5):
        row = prices.make(random.Random(seed))
        fields = {name: row[name] for name in ("evidence", "question", "answer")}
        task = Task("t", (Message("user", row["prompt"]),), fields)
        right = prices.solution(row["items"], row["prices"])
        wrong = prices.solution(row["items"], dict.fromkeys(row["items"], 99))
        bare = "\n".join(line.partition(" [premise")[0] for line in right.splitlines())
        texts = [right, wrong, bare, row["answer"]]
        rewards = anyio.run(scorer.score, task, [Response(t, t) for t in texts])
        steps = [[part.value for part in one.parts] for one in rewards]
        assert steps == [[1, 1, 1], [0, 0, 1], [0.5, 0.5, 0], [0]]


def test_evidence_that_cannot_be_read_is_a_metric_and_a_warning(tmp_path):
    (tmp_path / "broken.py").write_text(
        "def make(rng):\n"
        "    picture = {'image': 'data:image/png;base64,AAAA'}\n"
        "    return {'prompt': f'Read {rng.random()}', 'evidence': picture}\n"
    )
    given = settings(evpv(), reward("letters", weight=0.5))
    given["task"] = {"kind": "function", "path": f"{tmp_path / 'broken.py'}:make"}
    events = finish(run := trainer(tmp_path, given))
    (step,) = [event for event in events if isinstance(event, StepDone)]
    assert step.metrics["premises/gate_open"] == 1.0
    (line,) = [line for line in watch_of(run.config, {}).texts(step) if "premises" in line]
    assert line.startswith("100% of the answers have premises that nobody could check")
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        assert [point.value for point in store.metrics()["premises/gate_open"]] == [1.0]
