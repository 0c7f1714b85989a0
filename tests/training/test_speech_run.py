import json
import math
import os
import signal
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from training_cases import assert_same, finish, outcome, stop_after

import warm
from burnish.cli.entry import run as burnish_run
from burnish.config import Config, load, render
from burnish.errors import UserError
from burnish.media import encode_sound, read_sound, write_sound
from burnish.models.audio_tokenizer import (
    new_tokenizer,
    open_generator,
    open_speech_folder,
    save_speech_folder,
)
from burnish.speech.engines import LatentEngine
from burnish.store import RunStore
from burnish.tasks.sounds import UtteranceCorpus
from burnish.training import build
from burnish.training.events import HeldOut, Prepared, StepDone

RATE = 2000
TOKENIZER = {
    "sampling_rate": RATE,
    "n_fft": 32,
    "frame_hop": 16,
    "strides": [2],
    "hidden_size": 16,
    "latent_size": 4,
}
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "head_size": 16,
    "head_layers": 1,
}
TEXTS = (
    "Oh no.",
    "Ah, one.",
    "Go on!",
    "A hen, an ox.",
    "No hog.",
    "On an oar.",
    "Ha!",
    "One egg.",
)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path_factory.mktemp("cache")))


def spoken(text, pitch=1.0):
    """A tone for every letter."""
    place = np.arange(100) / RATE
    tones = [0.4 * np.sin(2 * np.pi * pitch * (150 + 20 * (ord(one) % 24)) * place) for one in text]
    return np.concatenate(tones).astype(np.float32)


def good_rows():
    for number, text in enumerate(TEXTS):
        voice = ("low", "high")[number % 2]
        yield text, voice, spoken(text.lower(), 1 + 0.5 * (number % 2))


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def place(tmp_path):
    """A folder with a tokenizer and rows of two voices."""
    new_tokenizer(tmp_path / "tokenizer", seed=3, **TOKENIZER)
    rows = []
    for number, (text, voice, wave) in enumerate(good_rows()):
        write_sound(tmp_path / f"wavs/{number}.wav", wave, RATE)
        rows.append({"audio": f"wavs/{number}.wav", "text": text, "voice": voice})
    write_jsonl(tmp_path / "clips.jsonl", rows)
    return tmp_path


def settings(train=(), sizes=(), **more):
    return {
        "steps": 6,
        "train": {
            "kind": "speech",
            "tokenizer": "tokenizer",
            "data": "clips.jsonl",
            "batch": 4,
            "held_out": 0.3,
            "spoken": 2,
            "sizes": {**SIZES, **dict(sizes)},
            **dict(train),
        },
        "model": {"path": "new", "device": "cpu", "threads": 1},
        "optimiser": {"learning_rate": 3e-3},
        "evaluation": {"prompts": 4},
        "checkpoint": {"every": 2},
        **more,
    }


def make(folder, train=(), run="run", sizes=(), **more):
    return build(load(Config, settings(train, sizes, **more)), folder / run, root=folder)


def gradients(run, tokens):
    """Of step 0, with passes of so many tokens; and how many passes that were."""
    run.optimiser.clear()
    passes = 0
    for micro in run.algorithm.micro_batches(run.algorithm.batch(0), tokens):
        run.algorithm.loss(run.trainable.module, micro).total.backward()
        passes += 1
    return [one.clone() for one in run.optimiser.copy_sums()], passes


@pytest.mark.parametrize("head", ["flow", "regression"])
def test_the_loss_falls_on_a_few_rows(place, head):
    run = make(place, {"held_out": 0.3}, steps=60, sizes={"head": head}, checkpoint={"every": 0})
    events = finish(run)
    steps = [event.metrics for event in events if isinstance(event, StepDone)]
    for metrics in steps:
        parts = metrics["loss/patches"] + metrics["loss/end"]
        assert metrics["loss/total"] == pytest.approx(parts, rel=1e-5)
    totals = [step["loss/total"] for step in steps]
    assert sum(totals[-10:]) < 0.85 * sum(totals[:10])
    before, after = (event.score.value for event in events if isinstance(event, HeldOut))
    assert after < 0.9 * before
    assert run.algorithm.config.head == head


def test_the_generator_has_the_voices_and_the_pace_of_the_rows(place):
    run = make(place, {"held_out": 0.0})
    config = run.algorithm.config
    characters = sum(len(text) for text in TEXTS)
    # 100 samples a character, 32 a latent, two latents a patch.
    patches = sum(math.ceil(100 * len(text) / 32) // 2 for text in TEXTS)
    assert config.voices == ["high", "low"]
    assert config.characters_a_patch == round(characters / patches, 3)
    assert (config.latent_size, config.is_normalised) == (4, True)
    assert run.algorithm.workload().answer_tokens == round((characters + patches) / len(TEXTS))
    run.store.close()
    behind = make(place, run="behind", sizes={"beside": False})
    assert behind.algorithm.config.characters_a_patch == 0
    behind.store.close()


def test_latents_are_those_of_the_frozen_tokenizer(place):
    run = make(place, {"held_out": 0.0})
    algorithm = run.algorithm
    weights = {name: value.clone() for name, value in algorithm.tokenizer.state_dict().items()}
    batch = algorithm.batch(0)
    lengths = [len(one) for one in batch.latents]
    assert lengths == sorted(lengths)
    for name, latents, ids in zip(batch.names, batch.latents, batch.ids, strict=True):
        number = int(name.partition(":")[2]) - 1
        wave = torch.from_numpy(read_sound(place / f"wavs/{number}.wav").samples)
        expected = algorithm.tokenizer.encode(wave).latents[0]
        assert len(latents) == len(expected) // 2 * 2
        np.testing.assert_array_equal(latents, expected[: len(latents)].numpy())
        np.testing.assert_allclose(latents.mean(1), 0, atol=1e-5)
        assert len(ids) == len(TEXTS[number])
    finish(run)
    for name, value in algorithm.tokenizer.state_dict().items():
        assert torch.equal(value, weights[name])


def test_an_epoch_reads_every_row_once(place):
    run = make(place, {"held_out": 0.0})
    batches = [run.algorithm.batch(step) for step in range(4)]
    for epoch in (batches[:2], batches[2:]):
        assert sorted(name for batch in epoch for name in batch.names) == [
            f"clips.jsonl:{number}" for number in range(1, 9)
        ]
    assert batches[0].names == run.algorithm.batch(0).names
    run.store.close()


@pytest.mark.parametrize("head", ["flow", "regression"])
def test_a_batch_in_several_passes_equals_one(place, head):
    run = make(place, {"batch": 6}, sizes={"head": head})
    # A head begins at velocity 0, where half of the gradients are 0.
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in run.trainable.module.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
    whole, one = gradients(run, 100_000)
    for tokens, count in ((60, 3), (1, 6)):
        cut, passes = gradients(run, tokens)
        assert one == 1
        assert passes >= count
        for left, right in zip(whole, cut, strict=True):
            torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-6)
    run.store.close()


@pytest.mark.parametrize("stop", [1, 3, 4])
def test_a_resumed_run_ends_with_the_same_bits(place, stop):
    finish(make(place, run="whole"))
    stop_after(make(place), stop)
    finish(make(place))
    assert_same(outcome(place / "run"), outcome(place / "whole"))


def test_a_killed_run_ends_with_the_same_bits(place):
    resolved = load(Config, settings(steps=60, run={"name": "killed"}))
    (place / "mine.toml").write_text(render(resolved))
    words, log = ["train", "mine.toml", "--quiet"], place / "said.txt"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    child = warm.start("burnish", words, folder=place, log=log, environment=environment)
    ends = time.monotonic() + 120
    while not (place / "runs/killed/checkpoints/step-000002").is_dir():
        assert time.monotonic() < ends, log.read_text()
        assert child.exitcode is None, log.read_text()
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert child.exitcode == -signal.SIGKILL
    whole = ["train", "mine.toml", "--quiet", "run.name=whole"]
    for again in (words, whole):
        assert warm.run("burnish", again, folder=place, log=log, environment=environment) == 0
    found = outcome(place / "runs/killed")
    assert found["checkpoint"] == "step-000060"
    assert_same(found, outcome(place / "runs/whole"))


def test_a_run_and_its_checkpoint_are_engines(place, capsys):
    run = make(place)
    finish(run)
    checkpoint = place / "run/checkpoints/step-000006"
    tokenizer, generator = open_speech_folder(checkpoint)
    for name, value in run.trainable.module.state_dict().items():
        assert torch.equal(value, generator.state_dict()[name])
    for name, value in run.algorithm.tokenizer.state_dict().items():
        assert torch.equal(value, tokenizer.state_dict()[name])
    engines = [LatentEngine(place / "run"), LatentEngine(checkpoint)]
    assert engines[0].version == engines[1].version
    assert (engines[0].voices, engines[0].sample_rate) == (("high", "low"), RATE)
    with torch.no_grad():  # a few steps do not teach it to end
        generator.end.weight.zero_()
        generator.end.bias.fill_(9.0)
    generator.save_pretrained(checkpoint)
    (place / "scene.toml").write_text(
        '[[global.speakers]]\nid = "A"\nvoice = "low"\n[[sentences]]\nspeaker = "A"\ntext = "Oh no."\n'
    )
    said = []
    for number, engine in enumerate((place / "run", checkpoint)):
        target = place / f"{number}.wav"
        words = ["speak", str(place / "scene.toml"), "-o", str(target), "--engine", str(engine)]
        assert burnish_run([*words, "--json"]) == 0
        told = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert told["voices"] == {"A": f"{engine} low"}
        said.append(target.read_bytes())
    assert said[0] == said[1]
    assert read_sound(place / "0.wav").seconds == pytest.approx(told["seconds"])


@pytest.mark.parametrize("form", ["run", "folder"])
def test_a_generator_goes_on_learning(place, form):
    run = make(place, run="first")
    finish(run)
    if form == "folder":
        save_speech_folder(place / "folder", run.algorithm.tokenizer, run.trainable.module)
    start = {"run": place / "first/checkpoints/step-000006", "folder": place / "folder/generator"}
    model = {"path": "first" if form == "run" else "folder", "device": "cpu", "threads": 1}
    again = make(place, model=model)
    for name, value in open_generator(start[form]).state_dict().items():
        assert torch.equal(again.trainable.module.state_dict()[name], value.float())
    finish(again)


def test_held_out_sentences_are_spoken_and_kept(place):
    finish(make(place, evaluation={"prompts": 4, "every": 3}))
    with RunStore.open(place / "run", read_only=True) as store:
        evaluations = store.evaluations("held_out")
        samples = {(one.step, one.index): one for one in store.samples()}
        kept = min(2, len(evaluations[0].summary["marks"]))
        assert sorted(samples) == [(step, i) for step in (0, 3, 6) for i in range(kept)]
        for evaluation in evaluations:
            figures, marks = evaluation.summary["figures"], evaluation.summary["marks"]
            mean = sum(marks) / len(marks)
            assert figures["patches"] + figures["end"] == pytest.approx(mean, rel=1e-6)
            assert samples[evaluation.step, 0].reward.value == -marks[0]
        first, last = samples[0, 0], samples[6, 0]
        assert first.task == last.task
        assert first.trajectory.role == "speech"
        number = int(last.task.prompt.partition(":")[2].partition(",")[0]) - 1
        original = read_sound(store.blobs.read(last.task.media[0])).samples
        np.testing.assert_array_equal(original, read_sound(place / f"wavs/{number}.wav").samples)
        (turn,) = last.trajectory.messages
        assert turn.text.startswith(f"spoken: {TEXTS[number].lower().strip(',; ')}")
        patches = math.ceil(len(original) / 32) // 2
        made = read_sound(store.blobs.read(turn.media[0]))
        assert made.rate == RATE
        assert 64 <= len(made.samples) <= 2 * 64 * patches


def test_every_form_of_rows_gives_the_same_batch(place):
    rows = list(good_rows())
    nested = [
        {"audio": {"bytes": encode_sound(wave, RATE), "path": None}, "text": text, "voice": voice}
        for text, voice, wave in rows
    ]
    pq.write_table(pa.Table.from_pylist(nested), place / "nested.parquet")
    lines = [f'"{text}",wavs/{number}.wav,{voice}' for number, (text, voice, _) in enumerate(rows)]
    (place / "rows.csv").write_text("\n".join(["said,sound,who", *lines]))
    (place / "mine.py").write_text(
        "import json\nfrom pathlib import Path\nfrom burnish.media import read_sound\n"
        f"HERE = Path({str(place)!r})\n"
        "def rows():\n"
        "    for line in (HERE / 'clips.jsonl').read_text().splitlines():\n"
        "        row = json.loads(line)\n"
        "        found = read_sound(HERE / row['audio'])\n"
        "        yield {**row, 'audio': (found.samples, found.rate)}\n"
    )
    batches = []
    for number, train in enumerate(
        (
            {},
            {"data": "nested.parquet"},
            {"data": "rows.csv", "text": "said", "voice": "who"},
            {"data": "mine.py:rows"},
        )
    ):
        run = make(place, train, run=f"run-{number}")
        batches.append(run.algorithm.batch(0))
        run.store.close()
    for batch in batches[1:]:
        assert batch.ids == batches[0].ids
        assert batch.voices == batches[0].voices
        for one, two in zip(batch.latents, batches[0].latents, strict=True):
            np.testing.assert_array_equal(one, two)


def test_the_same_sentence_is_on_one_side(place):
    rows = [
        {"audio": f"wavs/{number}.wav", "text": f"Say {number % 4}.", "voice": "low"}
        for number in range(8)
    ]
    write_jsonl(place / "twice.jsonl", rows)
    run = make(place, {"data": "twice.jsonl", "held_out": 0.5})
    sides = run.algorithm.data.sounds
    train = {one.text for one in sides.train.places}
    held = {one.text for one in sides.held_out.places}
    assert (len(train | held), train & held) == (4, set())
    run.store.close()


def test_the_digest_follows_the_sounds_that_rows_name(place):
    first = UtteranceCorpus((str(place / "clips.jsonl"),), RATE).digest
    assert UtteranceCorpus((str(place / "clips.jsonl"),), RATE).digest == first
    write_sound(place / "wavs/3.wav", [0.2] * 500, RATE)
    assert UtteranceCorpus((str(place / "clips.jsonl"),), RATE).digest != first


def test_another_tokenizer_of_the_same_sizes_is_refused(place):
    finish(make(place, run="first"))
    new_tokenizer(place / "other", seed=9, **TOKENIZER)
    model = {"path": "first", "device": "cpu", "threads": 1}
    with pytest.raises(UserError, match="learned latents of another tokenizer") as refusal:
        make(place, {"tokenizer": "other"}, model=model)
    assert "\n" not in str(refusal.value)
    tokenizer, generator = open_speech_folder(place / "first/checkpoints/step-000006")
    folder = save_speech_folder(place / "folder", tokenizer, generator)
    assert open_speech_folder(folder).tokenizer.fingerprint() == tokenizer.fingerprint()
    new_tokenizer(folder / "tokenizer", seed=9, **TOKENIZER)
    with pytest.raises(UserError, match="another tokenizer"):
        open_speech_folder(folder)


def test_one_voice_needs_no_name(place):
    rows = [json.loads(line) for line in (place / "clips.jsonl").read_text().splitlines()]
    write_jsonl(place / "plain.jsonl", [{k: row[k] for k in ("audio", "text")} for row in rows])
    run = make(place, {"data": "plain.jsonl"})
    assert run.algorithm.config.voices == []
    finish(run)
    assert LatentEngine(place / "run").voices == ()


def nan_sound():
    wave = np.sin(np.arange(800) / 9).astype(np.float32)
    good = encode_sound(wave, RATE, bits=32)
    wave[17] = np.nan
    return good[: -wave.nbytes] + wave.astype("<f4").tobytes()


def test_rows_that_cannot_be_learned_from_are_counted_and_named(place):
    (place / "wavs/nan.wav").write_bytes(nan_sound())
    write_sound(place / "wavs/short.wav", [0.1] * 40, RATE)
    write_sound(place / "wavs/long.wav", [0.1] * (3 * RATE + 1), RATE)
    faults = [
        {"audio": "wavs/0.wav", "text": " ", "voice": "low"},
        {"audio": "wavs/0.wav", "voice": "low"},
        {"audio": "wavs/0.wav", "text": "да", "voice": "low"},
        {"audio": "wavs/nan.wav", "text": "nan", "voice": "low"},
        {"audio": "wavs/absent.wav", "text": "gone", "voice": "low"},
        {"audio": "../out.wav", "text": "out", "voice": "low"},
        {"audio": "wavs/long.wav", "text": "long", "voice": "low"},
        {"audio": "wavs/short.wav", "text": "short", "voice": "low"},
        {"audio": "wavs/0.wav", "text": "a book " * 100_000, "voice": "low"},
        {"audio": "wavs/0.wav", "text": "too fast " * 20, "voice": "low"},
    ]
    good = [json.loads(line) for line in (place / "clips.jsonl").read_text().splitlines()]
    write_jsonl(place / "all.jsonl", [*good, *faults])
    lines = []
    for _ in range(2):  # the second time from the cache
        run = make(place, {"data": "all.jsonl", "longest": 3.0}, run=f"run-{len(lines)}")
        lines += [event.line for event in finish(run) if isinstance(event, Prepared)]
    assert lines[0] == lines[1]
    assert "\n" not in lines[0]
    note = lines[0].partition("left out ")[2]
    assert note.startswith("10 of 18 rows: 2 without text (all.jsonl:9, all.jsonl:10)")
    assert "1 that cannot be spelled (all.jsonl:11: 'а')" in note
    assert "3 unreadable (all.jsonl:12: " in note
    assert "1 longer than 3 s (all.jsonl:15)" in note
    assert "1 shorter than 0.032 s (all.jsonl:16)" in note
    assert (
        "2 with more text than can be said (all.jsonl:17: 700,000 characters, at most 200 in 3 s"
        in note
    )


def test_a_changed_tokenizer_is_refused(place):
    stop_after(make(place), 2)
    new_tokenizer(place / "tokenizer", seed=4, **TOKENIZER)
    with pytest.raises(UserError, match=r"audio_tokenizer/model\.safetensors") as refusal:
        make(place)
    assert "\n" not in str(refusal.value)
