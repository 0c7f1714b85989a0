import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from training_cases import ROOT, file_task, finish, resolved, reward, stop_after, trainer

from burnish.bench.statistics import mean_estimate
from burnish.config import Config, load, render
from burnish.errors import UserError
from burnish.lm.folder import load_model
from burnish.lm.model_input import ModelInput
from burnish.records import Author
from burnish.store import RunStore
from burnish.training import build
from burnish.training.events import Finished, HeldOut, Started, StepDone
from burnish.training.packing import make_rows, pack, token_scores

REFILL = {
    "rewards": [reward("has_letter")],
    "policy": {"select": {"kind": "informative_groups", "refill": True, "max_rounds": 3}},
}


def read(folder):
    return RunStore.open(folder, read_only=True)


def groups_of(samples):
    found = {}
    for sample in samples:
        found.setdefault(sample.trajectory.group, []).append(sample)
    return found


def test_refill_replaces_groups_without_signal(tmp_path):
    trained = trainer(tmp_path, REFILL)
    finish(trained)
    with read(trained.folder) as store:
        tried = {p.step: int(p.value) for p in store.metrics()["groups/tried"]}
        useful = {p.step: int(p.value) for p in store.metrics()["groups/useful"]}
        seen = set()
        for step in range(6):
            kept = groups_of(store.samples(step=step, split="train"))
            dropped = groups_of(store.samples(step=step, split="dropped"))
            for group in kept.values():
                assert len({s.reward.value for s in group}) == 2, "a kept group has no signal"
            for group in dropped.values():
                assert len({s.reward.value for s in group}) == 1, "a dropped group had signal"
                assert all(s.advantage is None and not s.keep for s in group)
            assert tried[step] == len(kept) + len(dropped) <= 3 * 2
            assert useful[step] == len(kept) <= 2
            assert len(kept) == 2 or tried[step] >= 4
            seen |= {s.task.id for group in (kept | dropped).values() for s in group}
        count = sum(len(groups_of(store.samples(split=s))) for s in ("train", "dropped"))
    assert sum(tried.values()) > 12, "no step had to refill; the test says nothing"
    assert trained.algorithm.cursor.position == sum(tried.values()) == count
    assert len(seen) == sum(tried.values()), "a task was used twice"


def test_refill_gives_up_after_its_rounds(tmp_path):
    more = {**REFILL, "rewards": [reward("constant")], "steps": 1}
    trained = trainer(tmp_path, more)
    done = next(e for e in finish(trained) if isinstance(e, StepDone))
    assert done.metrics["groups/tried"] == 6.0
    assert (done.useful_groups, done.metrics["optimiser/updates"]) == (0, 0.0)
    assert trained.algorithm.cursor.position == 6
    with read(trained.folder) as store:
        assert store.summary().samples["train"] == 24, "what was tried is stored"


def test_the_logged_total_is_the_mean_of_what_is_stored(tmp_path):
    more = {
        "rewards": [
            reward("letters", weight=0.3),
            {"kind": "length", "unit": "characters", "max": 2, "edge": 7, "weight": 0.7},
        ]
    }
    trained = trainer(tmp_path, more)
    finish(trained)
    with read(trained.folder) as store:
        for point in store.metrics()["reward/total"]:
            samples = list(store.samples(step=point.step, split="train"))
            totals = [s.reward.value for s in samples]
            assert point.value == sum(totals) / len(totals)
            for sample in samples:
                letters, length = sample.reward.parts
                assert sample.reward.value == 0.3 * letters.value + 0.7 * length.value


def test_every_sample_is_stored_whole(tmp_path):
    more = {
        "rewards": [reward("letters"), {"kind": "length", "unit": "characters", "max": 2}],
        "update": {"epochs": 2},
    }
    trained = trainer(tmp_path, more)
    finish(trained)
    tokenizer = trained.lm.loaded.tokenizer
    with read(trained.folder) as store:
        samples = list(store.samples(split="train"))
    assert len(samples) == 6 * 2 * 4
    for sample in samples:
        item = sample.trajectory
        step, slot, index = map(int, item.id.split("."))
        assert (sample.step, sample.index) == (step, slot * 4 + index)
        assert item.weight_version == 2 * step
        assert item.token_ids[: item.prompt_length] == tuple(tokenizer.render(sample.task.messages))
        assert item.spans[0].author is Author.TEMPLATE
        answer = item.spans[-1]
        assert answer.author is Author.MODEL
        assert item.loss_mask == (0,) * item.prompt_length + (1,) * len(answer.token_ids)
        assert 1 <= len(answer.token_ids) == len(item.logprobs) <= 6
        assert all(p < 0 for p in item.logprobs)
        assert item.text == tokenizer.decode(list(answer.token_ids))
        assert [part.name for part in sample.reward.parts] == ["letters", "length"]
        assert sample.reward.parts[1].evidence[0].observation.endswith("wanted 0 to 2")
        assert sample.task.fields == {"row": int(sample.task.prompt.split()[1][:-1])}
        assert sample.advantage is not None


def test_sampled_logprobs_are_those_of_the_weights_of_their_version(tmp_path):
    """The sampler sees each update: samples of step 1 fit the weights after step 0, no others."""
    trained = trainer(tmp_path, {"checkpoint": {"every": 1, "keep": 9}, "steps": 3})
    finish(trained)
    with read(trained.folder) as store:
        items = [s.trajectory for s in store.samples(step=1, split="train")]
    gaps = {}
    for version in (0, 1, 2):
        place = trained.folder / "checkpoints" / f"step-{version:06d}"
        module = load_model(place if version else "tiny", device="cpu").module
        packed = pack(make_rows(items, True), items, torch.device("cpu"))
        with torch.no_grad():
            logp = token_scores(module, packed, 1.0).logp_BT
        said = [torch.tensor(items[i].logprobs) for i in packed.members]
        pairs = [(logp[k, : len(row)], row) for k, row in enumerate(said)]
        gaps[version] = max(float((a - b).abs().max()) for a, b in pairs)
    assert gaps[1] < 1e-5
    assert min(gaps[0], gaps[2]) > 1e-3


def test_evaluation_is_greedy_with_an_interval_and_stored(tmp_path):
    trained = trainer(tmp_path, {"evaluation": {"every": 2, "prompts": 4}})
    events = finish(trained)
    held_out = [e for e in events if isinstance(e, HeldOut)]
    assert [e.step for e in held_out] == [0, 2, 4, 6]
    with read(trained.folder) as store:
        stored = {e.step: e.summary for e in store.evaluations("held_out")}
        samples = list(store.samples(split="eval:held_out"))
    for event in held_out:
        marks = [s.reward.value for s in samples if s.step == event.step]
        assert stored[event.step]["marks"] == marks
        assert event.score == mean_estimate(marks)
        assert event.score.low <= event.score.value < event.score.high
        assert (event.valid, event.count) == (4, 4)
    assert {s.task.id for s in samples} == {f"train/held-out/{i}" for i in range(1, 5)}
    first = [s for s in samples if s.step == 0]
    module = load_model("tiny", device="cpu").module
    for sample in first:
        ids = torch.tensor([sample.trajectory.token_ids])
        with torch.no_grad():
            hidden = module(ModelInput(ids, torch.arange(ids.shape[1])[None]))
            best = module.logits(hidden)[0].argmax(-1)
        start = len(ids[0]) - len(sample.trajectory.spans[-1].token_ids)
        assert best[start - 1 : -1].tolist() == ids[0, start:].tolist(), "not the likeliest tokens"
    assert isinstance(events[-1], Finished)
    assert events[-1].before == held_out[0].score
    assert events[-1].after == held_out[-1].score
    assert events[-1].change is not None


def test_the_tiny_recipe_learns(tmp_path):
    words = ["model.device=cpu", "model.threads=1", "evaluation.prompts=25"]
    settings = load(Config, ROOT / "recipes" / "tiny.toml", words)
    events = finish(build(settings, tmp_path / "run", root=ROOT))
    last = events[-1]
    assert last.status == "finished"
    assert last.change.low > 0.3, "the held-out score did not rise clearly"
    rewards = [e.metrics["reward/total"] for e in events if isinstance(e, StepDone)]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.2


def distance(trained):
    """KL(policy || reference) over the whole vocabulary, mean over the held-out prompts' tokens."""
    render = trained.lm.loaded.tokenizer.render
    rows = [render(task.messages) for task in trained.tasks.held_out(4)]
    with torch.no_grad(), trained.trainable.reference() as reference:
        gaps = []
        for row in rows:
            ids, positions = torch.tensor([row]), torch.arange(len(row))[None]
            own, first = (
                m.logits(m(ModelInput(ids, positions)))[0].log_softmax(-1)
                for m in (trained.trainable.module, reference)
            )
            gaps.append((own.exp() * (own - first)).sum(-1).mean())
    return float(torch.stack(gaps).mean())


@pytest.mark.parametrize(("coefficient", "low", "high"), [(20.0, 0.0, 0.6), (1e-9, 0.9, 9.0)])
def test_a_kl_term_pulls_back_to_the_reference(tmp_path, coefficient, low, high):
    """From weights put far away; without weight on the term the distance stays."""
    more = {
        "policy": {"auxiliary": [{"kind": "kl", "coefficient": coefficient}]},
        "rollout": {"prompts": 4, "samples": 8},
        "evaluation": {"prompts": 0},
        "steps": 15,
    }
    trained = trainer(tmp_path, more)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in trained.optimiser.parameters:
            p.add_(0.02 * torch.randn(p.shape, generator=generator))
    before = distance(trained)
    finish(trained)
    assert low < distance(trained) / before < high


def test_at_the_start_the_kl_is_zero(tmp_path):
    more = {"policy": {"auxiliary": [{"kind": "kl", "coefficient": 0.5}]}, "steps": 2}
    curve = [e.metrics["loss/kl"] for e in finish(trainer(tmp_path, more)) if hasattr(e, "metrics")]
    assert curve[0] == pytest.approx(0.0, abs=1e-12)
    assert curve[1] > 1e-6


LORA = {"model": {"lora": {"rank": 4, "alpha": 8.0}}, "optimiser": {"learning_rate": 1e-2}}


def test_lora_trains_only_its_adapters(tmp_path):
    trained = trainer(tmp_path, LORA)
    base = {n: p.clone() for n, p in trained.trainable.module.named_parameters()}
    events = finish(trained)
    assert all(".lora_" in name for name in trained.optimiser.names)
    assert len(trained.optimiser.names) == 2 * 7 * 2, "two matrices for seven layers of two blocks"
    started = next(e for e in events if isinstance(e, Started))
    assert started.trained_parameters == sum(p.numel() for p in trained.optimiser.parameters)
    moved = set()
    for name, p in trained.trainable.module.named_parameters():
        if not torch.equal(p, base[name]):
            moved.add(name)
    assert moved == set(trained.optimiser.names)


def test_lora_is_seeded_and_resumes_exactly(tmp_path):
    stop_after(trainer(tmp_path, LORA, {"checkpoint": {"every": 0}}), 2)
    torch.manual_seed(99)
    finish(trainer(tmp_path, LORA, {"checkpoint": {"every": 0}}))
    torch.manual_seed(5)
    finish(trainer(tmp_path, LORA, run="whole"))
    places = [tmp_path / run / "checkpoints" / "step-000006" for run in ("run", "whole")]
    files = [(p / "model.safetensors").read_bytes() for p in places]
    assert files[0] == files[1]


def test_the_reference_of_a_lora_run_is_the_first_model(tmp_path):
    trained = trainer(
        tmp_path, LORA, {"policy": {"auxiliary": [{"kind": "kl", "coefficient": 0.1}]}}
    )
    finish(trained)
    first = load_model("tiny", device="cpu").module
    ids = torch.arange(20, 40)[None]
    with torch.no_grad():
        inputs = ModelInput(ids, torch.arange(20)[None])
        expected = first(inputs)
        with trained.trainable.reference() as reference:
            assert torch.equal(reference(inputs), expected)
        now = trained.trainable.module(inputs)
    assert not torch.allclose(now, expected, atol=1e-3), "the adapters are off after the reference"


# --- checkpoints that others load

LOADER = """
import sys, torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
found = {}
for place in sys.argv[2:]:
    model = AutoModelForCausalLM.from_pretrained(place)
    tokenizer = AutoTokenizer.from_pretrained(place)
    chat = [{"role": "user", "content": "item 3?"}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
    with torch.no_grad():
        found[place] = model(ids).logits[0]
save_file(found, sys.argv[1])
"""


@pytest.mark.peers
def test_checkpoints_load_as_they_lie_in_a_fresh_process(tmp_path):
    pytest.importorskip("transformers")
    made = {
        "full": trainer(tmp_path, {"steps": 2}, run="full"),
        "lora": trainer(tmp_path, LORA, {"steps": 2}, run="lora"),
    }
    places = {}
    for name, trained in made.items():
        finish(trained)
        places[name] = str(tmp_path / name / "checkpoints" / "step-000002")
    out = tmp_path / "logits.safetensors"
    subprocess.run(
        [sys.executable, "-c", LOADER, str(out), *places.values()],
        check=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        timeout=600,
    )
    found = load_file(out)
    first = load_model("tiny", device="cpu")
    for name, trained in made.items():
        prompt = trained.tasks.train_tasks[3].messages
        assert prompt[0].content == "item 3?"
        ids = torch.tensor([trained.lm.loaded.tokenizer.render(prompt)])
        positions = torch.arange(ids.shape[1])[None]
        with torch.no_grad():
            module = trained.trainable.module
            ours = module.logits(module(ModelInput(ids, positions)))[0]
            untrained = first.module.logits(first.module(ModelInput(ids, positions)))[0]
        torch.testing.assert_close(found[places[name]], ours, rtol=0, atol=2e-5)
        assert not torch.allclose(ours, untrained, atol=1e-3), f"{name} did not train"


def test_only_the_newest_checkpoints_are_kept(tmp_path):
    trained = trainer(tmp_path, {"checkpoint": {"every": 1, "keep": 2}})
    finish(trained)
    found = sorted(p.name for p in (trained.folder / "checkpoints").iterdir())
    assert found == ["step-000005", "step-000006"]
    state = json.loads((trained.folder / "checkpoints/step-000006/trainer/state.json").read_text())
    assert (state["step"], state["algorithm"]["cursor"], state["weight_version"]) == (6, 12, 6)


@pytest.mark.parametrize(
    ("samples", "limit", "expected"), [(2, "", 1), (8, "", 2), (8, "0", 2), (8, "1", 1)]
)
def test_threads_follow_the_rows_that_are_decoded_at_once(
    tmp_path, monkeypatch, samples, limit, expected
):
    """115 k weights: one thread for 16 rows, every core for 64, never more than OMP allows."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", limit)
    before = torch.get_num_threads()
    rollout = {"prompts": 8, "samples": samples, "max_tokens": 16}
    trained = trainer(tmp_path, {"model": {"threads": 0}, "rollout": rollout})
    trained.store.close()
    torch.set_num_threads(before)
    assert trained.threads == expected


def long_task(folder, long_rows):
    task = file_task(folder)
    rows = [{"question": "x" * (200 if i in long_rows else 5), "row": i} for i in range(7)]
    for i, row in enumerate(rows):
        row["question"] += str(i)
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"task": task, "rollout": {"max_prompt_tokens": 100}}


def test_overlong_prompts_are_an_error_before_the_first_step(tmp_path):
    settings = resolved(tmp_path, long_task(tmp_path, {1, 4}))
    with pytest.raises(UserError) as caught:
        build(settings, tmp_path / "run", root=tmp_path)
    message = str(caught.value)
    assert message.startswith("2 of 7 prompts of 'train' are longer than 100 tokens, the longest: ")
    assert "train/2 (220 tokens)" in message
    assert "train/5 (220 tokens)" in message
    assert message.endswith("Raise rollout.max_prompt_tokens or set rollout.overlong_prompts=drop.")
    assert not (tmp_path / "run").exists()


def test_overlong_prompts_are_dropped_and_counted_where_asked(tmp_path):
    drop = {"rollout": {"overlong_prompts": "drop"}}
    settings = resolved(tmp_path, long_task(tmp_path, {1, 4}), drop)
    trained = build(settings, tmp_path / "run", root=tmp_path)
    started = next(e for e in finish(trained) if isinstance(e, Started))
    assert started.prompts.looked_at == 7
    assert [tokens for _, tokens in started.prompts.overlong] == [220, 220]
    assert started.prompts.longest == 220
    with read(trained.folder) as store:
        used = [s.task.fields["row"] for s in store.samples(split="train")]
    assert set(used) == {0, 2, 3, 5, 6}
    # 12 tasks were used; 5 of every 7 fit.
    assert trained.algorithm.cursor.position in range(16, 19)


def test_the_forecast_counts_what_is_there(tmp_path):
    kl = {"policy": {"auxiliary": [{"kind": "kl", "coefficient": 0.1}]}}
    trained = trainer(tmp_path, kl)
    found = trained.forecast
    measured = sum(p.numel() * p.element_size() for p in trained.trainable.module.parameters())
    moments = trained.optimiser.first + trained.optimiser.second
    assert found.memory["weights"] == found.memory["reference"] == measured
    assert found.memory["optimiser"] == sum(t.numel() * t.element_size() for t in moments)
    assert "master weights" not in found.memory, "float32 needs none"
    assert found.total == sum(found.memory.values())
    assert all(value > 0 for value in found.memory.values())
    assert found.total < found.available
    trained.store.close()


def test_bfloat16_trains_over_float32_masters(tmp_path):
    # Few tokens: a CPU may only emulate this precision.
    few = {"rollout": {"prompts": 1}, "evaluation": {"prompts": 0}, "steps": 2}
    trained = trainer(tmp_path, {"model": {"dtype": "bfloat16"}}, few)
    finish(trained)
    for p, master in zip(trained.optimiser.parameters, trained.optimiser.masters, strict=True):
        assert p.dtype == torch.bfloat16
        assert torch.equal(p, master.bfloat16())
    saved = load_file(trained.folder / "checkpoints" / "step-000002" / "model.safetensors")
    assert {t.dtype for t in saved.values()} == {torch.bfloat16}


# --- several processes

TWO = """
from pathlib import Path
from burnish.cli.entry import run
from burnish.training.devices import World
code = run(["train", "config.toml", "--quiet"])
world = World.join()
Path(f"rank-{world.rank}-of-{world.size}").write_text(str(code))
"""


def test_two_processes_end_where_one_does(tmp_path):
    settings = {
        **REFILL,
        "steps": 3,
        "run": {"name": "two", "folder": "."},
        "rollout": {"prompts": 3},
        "update": {"minibatches": 2, "micro_batch_tokens": 64},
    }
    (tmp_path / "config.toml").write_text(render(resolved(tmp_path, settings)))
    (tmp_path / "two.py").write_text(TWO)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "two.py"]
    done = subprocess.run(
        [sys.executable, *launch],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert {p.name for p in tmp_path.glob("rank-*")} == {"rank-0-of-2", "rank-1-of-2"}
    finish(trainer(tmp_path, settings, run="one"))
    weights = [
        load_file(tmp_path / run / "checkpoints" / "step-000003" / "model.safetensors")
        for run in ("one", "two")
    ]
    assert weights[0].keys() == weights[1].keys()
    for name, tensor in weights[0].items():
        torch.testing.assert_close(tensor, weights[1][name], rtol=0, atol=1e-5)
    with read(tmp_path / "one") as one, read(tmp_path / "two") as two:
        assert [s.trajectory.text for s in one.samples()] == [
            s.trajectory.text for s in two.samples()
        ]
        kept = [{k: v for k, v in s.metrics().items() if k[:5] != "time/"} for s in (one, two)]
    assert kept[0].keys() == kept[1].keys()
    for name, curve in kept[0].items():
        others = [p.value for p in kept[1][name]]
        assert [p.value for p in curve] == pytest.approx(others, rel=1e-3, abs=1e-6), name
