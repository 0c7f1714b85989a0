import base64
import io
import json

import numpy as np
import pytest
from lab.tiny_media import FAMILIES, tiny_media_model
from training_cases import assert_same, finish, merged, outcome, resolved, stop_after

from burnish.config.schema import RewardModelTrain
from burnish.lm.folder import load_model
from burnish.lm.local import LocalLM
from burnish.records import Message, Task, TextPart
from burnish.rewards.models.term import Pair
from burnish.store import RunStore
from burnish.store.blobs import Blobs, shared_blobs
from burnish.training import build
from burnish.training.pairs import render_pairs, scored_spans

Image = pytest.importorskip("PIL.Image", reason="images need pillow")
soundfile = pytest.importorskip("soundfile", reason="sounds need soundfile")
pytest.importorskip("soxr", reason="sounds need soxr")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    made = {}

    def folder(family):
        if family not in made:
            made[family] = tiny_media_model(tmp_path_factory.mktemp(family), family)
        return made[family]

    return folder


def medium(family, seed):
    """A part in the OpenAI form."""
    rng, file = np.random.default_rng(seed), io.BytesIO()
    if family == "qwen2_audio":
        samples = rng.normal(0, 0.1, 6000).astype(np.float32)
        soundfile.write(file, samples, 16000, format="WAV")
        data = base64.b64encode(file.getvalue()).decode()
        return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    pixels = rng.integers(0, 256, (30 + seed, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def task(folder, family, rows=5):
    """Prompts with one medium each, the last of them with two."""
    for name, count, first in (("train", rows, 0), ("held_out", 3, 50)):
        lines = []
        for i in range(count):
            seen = [medium(family, first + i + k) for k in range(1 + (i == count - 1))]
            parts = [{"type": "text", "text": f"{name} {i}: "}, *seen]
            row = {"talk": [{"role": "user", "content": parts}], "row": i, "answer": f"it is {i}"}
            row |= {"chosen": f"good {i}", "rejected": f"bad {i}!"}
            lines.append(json.dumps(row) + "\n")
        (folder / f"{name}.jsonl").write_text("".join(lines))
    return {
        "kind": "file",
        "path": str(folder / "train.jsonl"),
        "messages": "talk",
        "fields": {k: k for k in ("row", "answer", "chosen", "rejected")},
        "held_out": {"by": "file", "path": str(folder / "held_out.jsonl")},
    }


def media_trainer(tmp_path, folder, family, *tables, run="run"):
    table = merged(
        {
            "steps": 2,
            "model": {"path": str(folder), "dtype": "float32", "device": "cpu", "threads": 1},
            "rollout": {"prompts": 2, "samples": 3, "max_tokens": 5},
            "checkpoint": {"every": 1, "keep": 2},
        },
        *tables,
    )
    config = resolved(tmp_path, {"task": task(tmp_path, family)}, table)
    return build(config, tmp_path / run, root=tmp_path)


GRPO = {"policy": {"auxiliary": [{"kind": "kl", "coefficient": 0.04}]}}


@pytest.mark.parametrize("family", FAMILIES)
def test_grpo_runs_two_steps_and_resumes_exactly(tmp_path, folder_of, family):
    folder = folder_of(family)
    finish(media_trainer(tmp_path, folder, family, GRPO, run="whole"))
    stop_after(media_trainer(tmp_path, folder, family, GRPO), 1, saved=True)
    finish(media_trainer(tmp_path, folder, family, GRPO))
    assert_same(outcome(tmp_path / "run"), outcome(tmp_path / "whole"))
    # What was sampled is stored with its media, which lie in the run's own folder.
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        samples = list(store.samples())
    loaded = load_model(tmp_path / "run" / "checkpoints" / "step-000002", device="cpu")
    ids = loaded.module.media.placeholder_ids
    blobs = Blobs(tmp_path / "run" / "blobs")
    for sample in samples:
        spans = sample.trajectory.spans
        parts = [part for span in spans for part in span.media]
        assert parts == [part for message in sample.task.messages for part in message.media]
        assert all(blobs.read(part) for part in parts)
        mask, tokens = sample.trajectory.loss_mask, sample.trajectory.token_ids
        assert not any(m for m, token in zip(mask, tokens, strict=True) if token in ids)
    # The checkpoint is a folder that reads media, and another model than the first.
    before = load_model(folder, device="cpu")
    prompt = loaded.tokenizer.prompt_ids(samples[0].task.messages)
    old, new = (LocalLM(one).score_batch([(prompt, [70, 71, 2])])[0] for one in (before, loaded))
    assert old.logprobs != pytest.approx(new.logprobs, abs=1e-4)


@pytest.mark.parametrize(
    "train",
    [
        {"kind": "sft", "batch": 2},
        {"kind": "dpo", "batch": 2},
        {"kind": "reward_model", "batch": 2},
    ],
    ids=lambda table: table["kind"],
)
@pytest.mark.parametrize("family", ["qwen2_5_vl", "smolvlm", "qwen2_audio"])
def test_other_kinds_of_training_read_media_too(tmp_path, folder_of, family, train):
    table = {"train": train, "rewards": [], "experts": {"field": "answer"}}
    if train["kind"] != "sft":
        del table["experts"]
    finish(media_trainer(tmp_path, folder_of(family), family, table, run="whole"))
    stop_after(media_trainer(tmp_path, folder_of(family), family, table), 1, saved=True)
    finish(media_trainer(tmp_path, folder_of(family), family, table))
    assert_same(outcome(tmp_path / "run"), outcome(tmp_path / "whole"))
    loaded = load_model(tmp_path / "run" / "checkpoints" / "step-000002", device="cpu")
    assert (loaded.score_head is not None) is (train["kind"] == "reward_model")


def test_adapters_train_and_are_merged(tmp_path, folder_of):
    lora = {"model": {"lora": {"rank": 2, "targets": ["q_proj", "v_proj"]}}}
    trainer = media_trainer(tmp_path, folder_of("smolvlm"), "smolvlm", GRPO, lora)
    finish(trainer)
    loaded = load_model(tmp_path / "run" / "checkpoints" / "step-000002", device="cpu")
    module = trainer.trainable.module
    tokenizer = loaded.tokenizer
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        messages = next(iter(store.samples())).task.messages
    prompt = tokenizer.prompt_ids(messages)
    ours = LocalLM(trainer.trainable.loaded).score_batch([(prompt, [70, 71])])[0]
    theirs = LocalLM(loaded).score_batch([(prompt, [70, 71])])[0]
    assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)
    assert any("lora_" in name for name, _ in module.named_parameters())


def test_pairs_with_the_same_tokens_about_two_pictures_are_two(tmp_path, folder_of):
    """LLaVA's pictures are all as many tokens, so that only the picture tells the rows apart."""
    loaded = load_model(folder_of("llava"), device="cpu")
    parts = [
        shared_blobs().add(base64.b64decode(medium("llava", i)["image_url"]["url"][22:]))
        for i in (1, 2)
    ]
    tasks = [
        Task(
            f"t{i}", (Message("user", (part, TextPart("What?"))),), {"chosen": "a", "rejected": "b"}
        )
        for i, part in enumerate(parts)
    ]
    fields = RewardModelTrain()
    pairs = [Pair(one, "a", "b") for one in tasks]
    answers = render_pairs(pairs, lambda pair: scored_spans(loaded.tokenizer, fields, pair))
    assert len(answers.trajectories) == 4
    assert [one.spans[1].media for one in answers.trajectories[::2]] == [(parts[0],), (parts[1],)]
