import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import transformers
from training_cases import assert_same, finish, outcome, stop_after

from burnish.config import Config, load
from burnish.errors import UserError
from burnish.media import encode_sound, read_sound, write_sound
from burnish.models.audio_tokenizer import AudioTokenizerModel, new_tokenizer
from burnish.store import RunStore
from burnish.training import build
from burnish.training.events import HeldOut, Prepared, StepDone
from burnish.training.optimiser import MasterAdamW

BOTTLENECKS = ("plain", "kl", "sigma", "norm", "norm+noise")
SIZES = {"sampling_rate": 2000, "n_fft": 32, "frame_hop": 16, "hidden_size": 16, "latent_size": 6}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path_factory.mktemp("cache")))


def tones(count=8, seconds=0.5, rate=2000):
    rng = np.random.default_rng(0)
    for number in range(count):
        size = int(rate * seconds * (0.3 + number / count))
        place = np.arange(size) / rate
        wave = 0.4 * np.sin(2 * np.pi * rng.uniform(100, 800) * place) + 0.02 * rng.normal(
            size=size
        )
        yield wave.astype(np.float32)


@pytest.fixture
def sounds(tmp_path):
    for number, wave in enumerate(tones()):
        write_sound(tmp_path / f"sounds/{number}.wav", wave, 2000)
    return tmp_path


def make(folder, train=(), run="run", sizes=(), **more):
    table = {
        "steps": 6,
        "train": {
            "kind": "codec",
            "data": "sounds",
            "batch": 4,
            "seconds": 0.2,
            "held_out": 0.3,
            "sizes": {**SIZES, **dict(sizes)},
            **dict(train),
        },
        "model": {"path": "new", "device": "cpu", "threads": 1},
        "optimiser": {"learning_rate": 2e-3},
        "evaluation": {"prompts": 4},
        "checkpoint": {"every": 2},
        **more,
    }
    return build(load(Config, table), folder / run, root=folder)


@pytest.mark.parametrize("bottleneck", BOTTLENECKS)
def test_every_bottleneck_learns(sounds, bottleneck):
    run = make(sounds, steps=40, sizes={"bottleneck": bottleneck}, checkpoint={"every": 0})
    events = list(run.run())
    *_, after = (event for event in events if isinstance(event, HeldOut))
    assert "with noise of 0.3 sd" in after.beside
    assert after.measure == "log_spectral_distance"
    steps = [event.metrics for event in events if isinstance(event, StepDone)]
    assert {"loss/magnitude", "loss/log_magnitude", "loss/mel", "loss/wave"} <= set(steps[0])
    assert ("loss/kl" in steps[0]) == (bottleneck == "kl")
    totals = [step["loss/total"] for step in steps]
    assert sum(totals[-5:]) < 0.9 * sum(totals[:5])


def test_a_checkpoint_is_a_tokenizer_that_automodel_opens(sounds):
    run = make(sounds)
    finish(run)
    place = sounds / "run/checkpoints/step-000006"
    for auto in (transformers.AutoModel, transformers.AutoModelForAudioTokenization):
        again = auto.from_pretrained(place)
        assert type(again) is AudioTokenizerModel
        for name, value in run.trainable.module.state_dict().items():
            assert torch.equal(value, again.state_dict()[name])
    latents = again.encode(torch.zeros(1, 100)).latents
    assert again.decode(latents, num_samples=100).shape == (1, 100)
    with RunStore.open(sounds / "run", read_only=True) as store:
        figures = store.evaluations("held_out")[-1].summary["figures"]
        assert sorted(figures) == ["noise_0.3", "noise_0.6"]
        assert len(store.metrics("audio/epoch")["audio/epoch"]) == 6


@pytest.mark.parametrize("adversarial", [None, {"after": 2, "channels": 4}])
@pytest.mark.parametrize("stop", [1, 3, 4])
def test_a_resumed_run_ends_with_the_same_bits(sounds, adversarial, stop):
    train = {} if adversarial is None else {"adversarial": adversarial}
    finish(make(sounds, train, run="whole"))
    stop_after(make(sounds, train), stop)
    finish(make(sounds, train))
    assert_same(outcome(sounds / "run"), outcome(sounds / "whole"))


def test_gradients_do_not_depend_on_how_the_batch_is_cut(sounds):
    found = []
    for tokens in (0, 7):
        run = make(sounds, run=f"run-{tokens}", update={"micro_batch_tokens": tokens})
        list(zip(run.run(), range(1), strict=False))
        # Rows without padding: means over frames are then means over rows.
        batch = run.algorithm.batch(0)
        batch = batch._replace(lengths_B=np.full(4, batch.samples_Bn.shape[1]))
        run.optimiser.clear()
        for micro in run.algorithm.micro_batches(batch, run.stage.setup.batches.tokens):
            run.algorithm.loss(run.trainable.module, micro).total.backward()
        found.append(run.optimiser.copy_sums())
        run.store.close()
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


def test_each_side_of_the_adversarial_phase_moves_itself_alone(sounds):
    run = make(sounds, {"adversarial": {"channels": 4, "weight": 1.0}})
    algorithm = run.algorithm
    sound = torch.from_numpy(algorithm.batch(0).samples_Bn)
    made = torch.zeros_like(sound, requires_grad=True)
    total, parts = algorithm._judged(sound, made)
    assert sorted(parts) == ["adversarial", "discriminator", "features"]
    total.backward()
    weights = [p for _, p in algorithm.parameters()]
    both = [p.grad.clone() for p in weights]
    for p in weights:
        p.grad = None
    real, fake = algorithm.judge(sound), algorithm.judge(made.detach())
    from burnish.models.audio_tokenizer.spectral import hinge_loss

    hinge_loss(real, fake).backward()
    for one, p in zip(both, weights, strict=True):
        torch.testing.assert_close(one, p.grad)
    assert made.grad.abs().sum() > 0
    assert any(name.startswith("discriminator.") for name in run.optimiser.names)
    assert isinstance(run.optimiser, MasterAdamW)
    run.store.close()


def test_crops_follow_from_the_seed_and_an_epoch_hears_every_clip(sounds):
    run = make(sounds, {"held_out": 0.0})
    next(iter(run.algorithm.prepare())).work()
    algorithm = run.algorithm
    one, two = algorithm.batch(3), algorithm.batch(3)
    assert np.array_equal(one.samples_Bn, two.samples_Bn)
    assert not np.array_equal(one.samples_Bn, algorithm.batch(4).samples_Bn)
    count = algorithm._crops[-1]
    heard = [algorithm._place(index)[0] for index in range(count)]
    assert set(heard) == set(range(8))
    short = min(range(8), key=lambda clip: algorithm.sounds.train.places[clip].samples)
    assert heard.count(short) == 1
    run.store.close()


def test_parquet_bytes_and_generated_sounds_are_read_alike(sounds):
    waves = list(tones())
    rows = [{"audio": {"bytes": encode_sound(wave, 2000), "path": None}} for wave in waves]
    pq.write_table(pa.Table.from_pylist(rows), sounds / "nested.parquet")
    flat = [{"id": n, "flac": encode_sound(w, 2000, "flac")} for n, w in enumerate(waves)]
    pq.write_table(pa.Table.from_pylist(flat), sounds / "flat.parquet")
    (sounds / "mine.py").write_text(
        "import numpy as np\n"
        "from burnish.media import read_sound\n"
        "from pathlib import Path\n"
        "def sounds():\n"
        f"    for number in range({len(waves)}):\n"
        f"        found = read_sound(Path({str(sounds)!r}) / f'sounds/{{number}}.wav')\n"
        "        yield found.samples, found.rate\n"
    )
    batches = []
    for data in ("sounds", "nested.parquet", "flat.parquet", "mine.py:sounds"):
        run = make(sounds, {"data": data}, run=data.partition(".")[0])
        batches.append(run.algorithm.batch(0).samples_Bn)
        run.store.close()
    for batch in batches[1:]:
        assert np.array_equal(batch, batches[0])


def test_sounds_of_their_own_are_held_out(sounds):
    write_sound(sounds / "test/one.wav", [0.1, -0.1] * 300, 2000)
    run = make(sounds, {"held_out_data": "test"})
    (line,) = (event.line for event in run.run() if isinstance(event, Prepared))
    assert line.startswith("8 clips")
    assert "held out 1 clips" in line


def test_a_tokenizer_of_a_folder_goes_on_learning(sounds):
    sizes = {**SIZES, "sampling_rate": 2000}
    start = new_tokenizer(sounds / "start", seed=5, **sizes)
    run = make(sounds, model={"path": "start", "device": "cpu", "threads": 1})
    for name, value in run.trainable.module.state_dict().items():
        assert torch.equal(value, start.state_dict()[name])
    finish(run)


def test_many_channels_and_high_rates_are_brought_to_the_models(sounds):
    wave = 0.3 * np.sin(np.arange(96_000) / 60)
    write_sound(sounds / "sounds/8.wav", np.stack([wave] * 8, 1), 192_000)
    run = make(sounds, {"held_out": 0.0})
    (place,) = (p for p in run.algorithm.sounds.train.places if p.name == "8.wav")
    assert place.samples == 1000
    finish(run)


def test_held_out_sounds_can_be_heard_beside_their_reconstructions(sounds):
    finish(make(sounds, run="run", evaluation={"prompts": 4, "every": 3}))
    with RunStore.open(sounds / "run", read_only=True) as store:
        evaluations = store.evaluations("held_out")
        samples = {(s.step, s.index): s for s in store.samples()}
        count = len(evaluations[0].summary["marks"])
        assert sorted(samples) == [(step, i) for step in (0, 3, 6) for i in range(count)]
        for evaluation in evaluations:
            for index, mark in enumerate(evaluation.summary["marks"]):
                sample = samples[evaluation.step, index]
                assert sample.reward.value == -mark
                (original,) = sample.task.media
                made = [part for turn in sample.trajectory.messages for part in turn.media]
                assert len(made) == 3
                heard = [read_sound(store.blobs.read(part)) for part in (original, *made)]
                assert len({(len(one.samples), one.rate) for one in heard}) == 1
        # The sound is the held-out file itself, and what is made of it changes by training.
        first, last = samples[0, 0], samples[6, 0]
        assert first.task == last.task
        assert first.trajectory.messages[0].media != last.trajectory.messages[0].media
        name = last.task.prompt.partition("\n")[0]
        whole = read_sound(sounds / "sounds" / name).samples
        np.testing.assert_array_equal(
            read_sound(store.blobs.read(last.task.media[0])).samples, whole
        )


def test_a_damaged_table_is_named_in_one_line(sounds):
    wave = 0.3 * np.sin(np.arange(900) / 9)
    rows = [encode_sound(wave * (1 + place) / 40, 2000) for place in range(40)]
    pq.write_table(pa.table({"audio": rows}), sounds / "rows.parquet", row_group_size=20)
    content = bytearray((sounds / "rows.parquet").read_bytes())
    column = pq.read_metadata(sounds / "rows.parquet").row_group(1).column(0)
    place = column.dictionary_page_offset or column.data_page_offset
    content[place : place + 40] = b"\xff" * 40
    (sounds / "rows.parquet").write_bytes(content)
    with pytest.raises(
        UserError, match=r"rows\.parquet: cannot be read behind row \d+ \("
    ) as refusal:
        finish(make(sounds, {"data": "rows.parquet"}))
    assert "\n" not in str(refusal.value)
