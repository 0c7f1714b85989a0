import json
from pathlib import Path

import pytest
import torch
from msgspec import convert
from training_cases import assert_same, finish, finish_with_stops, outcome, resolved, trainer

from burnish.errors import UserError
from burnish.models.visual_latent import LatentAnswer, LatentHead, latent_step
from burnish.png import png_bytes
from burnish.store import RunStore
from burnish.tasks.config import TaskConfig
from burnish.training import build
from burnish.training.algorithms.latents import ABOUT_FILE, GATE_FILE, HEAD_FILE
from burnish.training.data import Data
from burnish.training.events import Evaluating, Preparing
from burnish.training.latent_rows import ROWS, Asked, collated, find_tags, play, shown_latents

pytest.importorskip("PIL")
WORLD = Path(__file__).parents[2] / "recipes" / "gap" / "grid_world.py"
SMALL = {
    "steps": 4,
    "rewards": [],
    "task": {
        "kind": "function",
        "path": f"{WORLD}:make",
        "options": {"side": 2, "operations": 2},
        "held_out_size": 6,
    },
    "train": {"kind": "latents", "batch": 6, "slots": 4, "own": 1.0},
    "rollout": {"max_tokens": 12},
    "evaluation": {"prompts": 4},
    "checkpoint": {"every": 2},
}


def table(**train):
    return {**SMALL, "train": {**SMALL["train"], **train}}


def made(folder, **train):
    one = trainer(folder, table(**train))
    return one, one.stage.algorithm


def total_of(algorithm, batch, budget):
    module = algorithm.loaded.module
    module.zero_grad()
    total = 0.0
    for micro in algorithm.micro_batches(batch, budget):
        found = algorithm.loss(module, micro)
        found.total.backward()
        total += found.total.item()
    return total, [p.grad.clone() for p in module.parameters() if p.grad is not None]


def test_latents_are_exchanged_where_a_batch_has_two(monkeypatch):
    """A last batch without any is left out, and not the whole intervention."""
    latents = [torch.zeros(1, 2)]
    plain = [LatentAnswer([], latents if n < ROWS else [], [], 0, True) for n in range(ROWS + 3)]
    seen = []

    def answer(self, records, generator, name, given):
        seen.extend([records, given])
        return records

    monkeypatch.setattr(Asked, "answer", answer)
    monkeypatch.setattr(Asked, "mark", lambda self, record, one: 1.0)
    asked = Asked(None, None, None, torch.device("cpu"), 4)
    found = play(asked, list(range(ROWS + 3)), plain, ["shuffle"], 1)
    assert found == {"shuffle": [1.0] * ROWS}
    assert seen == [list(range(ROWS)), [latents] * ROWS]
    assert play(asked, [1], plain[:1], ["shuffle"], 1) == {}


@pytest.mark.parametrize("step", [0, 3])
def test_the_loss_of_an_update_is_the_same_however_it_is_cut(tmp_path, step):
    """Step 0 feeds targets, step 3 the model's own latents; rows have one span or two."""
    one, algorithm = made(tmp_path, beta=0.5)
    batch = algorithm.batch(step)
    assert batch.is_own == (step == 3)
    assert len({row.kinds.count("z") for row in batch.rows}) > 1
    rows = collated(batch.rows, algorithm.size, algorithm.device)
    own = torch.ones(6, dtype=torch.bool) if batch.is_own else None
    whole = latent_step(
        algorithm.model, algorithm.head, rows, alpha=algorithm._alpha, beta=0.5, own_B=own
    )
    for budget in (1, 100_000):
        total, gradients = total_of(algorithm, batch, budget)
        assert total == pytest.approx(whole.loss.item(), rel=1e-5)
        if budget == 1:
            apart = gradients
    for one_, two in zip(apart, gradients, strict=True):
        torch.testing.assert_close(one_, two, rtol=1e-3, atol=1e-5)
    one.store.close()


def test_rows_have_the_picture_the_words_and_the_slots(tmp_path):
    one, algorithm = made(tmp_path)
    record = next(r for r in algorithm.records.first(8) if len(r.aux_images) == 2)
    row = algorithm.makes.row(record, has_latents=True)
    assert row.kinds.startswith("iiii" + "p")
    assert row.kinds.count("z") == 8
    _, end, stop = algorithm.makes.tags
    assert row.ids.count(end) == 2
    assert row.ids[-1] == stop
    assert len(row.vectors_ND) == 12
    plain = algorithm.makes.row(record, has_latents=False)
    assert "z" not in plain.kinds
    learned = [i for i, kind in zip(plain.ids, plain.kinds, strict=True) if kind == "t"]
    text = algorithm.loaded.tokenizer.decode(learned)
    assert "parser" not in text
    assert f"<answer>{record.response.answer}</answer>" in text
    one.store.close()


def test_without_latents_it_is_fine_tuning_on_the_plain_answers(tmp_path):
    """The text-only arm has the loss of the plain rows, and no part of a head is trained."""
    one, algorithm = made(tmp_path, head="none")
    batch = algorithm.batch(1)
    assert batch.shared == 0
    assert list(algorithm.parameters()) == []
    rows = collated(batch.rows, algorithm.size, algorithm.device)
    logits = algorithm.model.decode_vectors(
        torch.where(
            rows.is_image_BT.unsqueeze(-1),
            rows.vectors_BTD,
            algorithm.model.get_input_embeddings()(rows.ids_BT),
        ),
        rows.mask_BT,
        (rows.mask_BT.long().cumsum(1) - 1).clamp(min=0),
    ).logits
    nll = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), rows.labels_BT[:, 1:].flatten(), ignore_index=-100
    )
    assert total_of(algorithm, batch, 100_000)[0] == pytest.approx(nll.item(), rel=1e-6)
    one.store.close()


@pytest.mark.parametrize("train", [{"gate": "measure", "gate_samples": 2}, {"head": "ema_norm"}])
def test_a_stopped_run_ends_with_the_same_bits(tmp_path, train):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    finish(trainer(tmp_path / "a", table(**train)))
    finish_with_stops(lambda: trainer(tmp_path / "b", table(**train)), 1, "2 saved", 3)
    assert_same(outcome(tmp_path / "b" / "run"), outcome(tmp_path / "a" / "run"))
    heads = [next((tmp_path / name).rglob(f"step-000004/{HEAD_FILE}")) for name in ("a", "b")]
    assert heads[0].read_bytes() == heads[1].read_bytes()


def test_a_checkpoint_has_the_head_with_its_basis(tmp_path):
    one, algorithm = made(tmp_path, interventions=["zero", "oracle"])
    finish(one)
    folder = next((one.folder / "checkpoints").glob("step-000004*"))
    place = next(folder.rglob(HEAD_FILE))
    head = LatentHead.load(place)
    for name, tensor in algorithm.head.state_dict().items():
        assert torch.equal(head.state_dict()[name], tensor.cpu())
    about = json.loads((place.parent / ABOUT_FILE).read_text())
    assert (about["head"], about["slots"], about["patch"]) == ("pca", 4, 8)
    with RunStore.open(one.folder, read_only=True) as store:
        metrics = store.metrics()
        events = [e for e in store.events() if e.kind == "interventions"]
    assert len(events) == 1
    assert set(events[0].data) >= {"own", "spans", "zero", "oracle"}
    assert {"loss/text", "loss/latent", "latents/r2", "latents/hidden_ratio"} <= set(metrics)


def test_the_gate_measures_the_start_and_chooses_by_it(tmp_path):
    one, algorithm = made(tmp_path, gate="measure", gate_samples=2)
    (told,) = [one.work() for one in algorithm.prepare()]
    assert told.line == (
        "24 of 24 measured questions are hard for the start model (at most 1 of 2 answers right) "
        "and get latents"
    )
    file = algorithm.setup.folder / GATE_FILE
    rates = json.loads(file.read_text())
    assert set(rates.values()) == {0.0}  # a random model answers nothing
    record = algorithm.records.first(1)[0]
    assert algorithm.imagines(record)
    algorithm.gate.rates[record.task.id] = 1.0
    assert not algorithm.imagines(record)
    assert "z" not in algorithm.makes.row(record, has_latents=algorithm.imagines(record)).kinds
    del algorithm.gate.rates[record.task.id]
    assert not algorithm.imagines(record)  # nothing is known of it
    one.store.close()


@pytest.mark.parametrize(("tau", "share"), [(-0.1, 0.0), (1.0, 1.0)])
def test_thresholds_at_the_ends_choose_none_or_all(tmp_path, tau, share):
    one, algorithm = made(tmp_path, gate="measure", gate_threshold=tau)
    for record in algorithm.records.first(12):
        algorithm.gate.rates[record.task.id] = 0.0 if share == 0 else 1.0
    assert algorithm.batch(0).shared == share
    one.store.close()


def write(folder, rows):
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "kind": "file",
        "path": str(file),
        "prompt": "question",
        "fields": {name: name for name in rows[0] if name != "question"},
    }


def record(**changes):
    vectors = [[[0.1 * i + 0.01 * j * k for k in range(64)] for j in range(3)] for i in range(1)]
    return {
        "question": "Which?",
        "aux_images": vectors,
        "response": "Look. <latent/> <parser>it</parser> <answer>b</answer>",
        **changes,
    }


def test_vectors_may_stand_in_the_place_of_pictures(tmp_path):
    rows = [record(question=f"Which {i}?") for i in range(8)]
    rows[1]["aux_images"] = []  # text only
    config = resolved(tmp_path, {**table(slots=3), "task": write(tmp_path, rows)})
    one = build(config, tmp_path / "run", root=tmp_path)
    algorithm = one.stage.algorithm
    kinds = [row.kinds for step in range(3) for row in algorithm.batch(step).rows]
    assert {kind.count("z") for kind in kinds} <= {0, 3}
    one.store.close()


DOCUMENTED = {
    "image": "chart.png",
    "aux_images": ["marked.png"],
    "response": "Mark the bars. <latent/> <parser>The third bar is marked, it ends at 40.</parser> "
    "<answer>the third</answer>",
    "base_accuracy": 0.25,
}
"""The record of docs/methods/gap.md."""


def pictured(folder, side=16, **changes):
    """A data folder with the documented record, beside the recipe's own folder."""
    folder.mkdir(parents=True)
    rows = [{"prompt": f"{n}: Which bar is highest?", **DOCUMENTED, **changes} for n in range(12)]
    (folder / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, colour in (("chart.png", 10), ("marked.png", 200)):
        (folder / name).write_bytes(png_bytes([[[colour, 0, side]] * side] * side))
    return {"kind": "file", "path": str(folder / "mine.jsonl")}


def test_the_documented_record_is_trained_on(tmp_path, monkeypatch):
    """Pictures stand beside the data file, not beside the recipe; the model reads text alone."""
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    task = pictured(tmp_path / "data")
    config = resolved(tmp_path, {**table(gate="field"), "task": task, "steps": 1})
    one = build(config, tmp_path / "run", root=tmp_path)
    algorithm = one.stage.algorithm
    found = algorithm.records.first(1)[0]
    assert [message.media for message in found.task.messages] == [()]
    row = algorithm.makes.row(found, has_latents=True)
    assert row.kinds.count("i") == 4  # 16 x 16 pixels, patches of 8
    assert row.kinds.count("z") == 4
    pixels = torch.tensor([200, 0, 16], dtype=torch.uint8).expand(16, 16, 3)
    expected = algorithm.makes.encoder(pixels).flatten(0, 1)
    torch.testing.assert_close(row.vectors_ND[4:], expected)
    finish(one)
    assert one.state.step == 1


def test_data_with_other_pictures_are_other_data(tmp_path):
    found = []
    for name, side in (("a", 16), ("b", 16), ("c", 24)):
        task = convert(pictured(tmp_path / name, side), TaskConfig)
        data = Data(task, 1, tmp_path, pictures=("image", "aux_images"))
        assert data.tasks.sample(1)[0].fields["aux_images"][0].keys() >= {"sha256"}
        found.append(data.tasks.fingerprint)
    assert found[0] == found[1] != found[2]
    moved = pictured(tmp_path / "rows")
    (tmp_path / "rows" / "chart.png").rename(tmp_path / "chart.png")
    (tmp_path / "rows" / "marked.png").rename(tmp_path / "marked.png")
    task = convert({**moved, "media_folder": ".."}, TaskConfig)
    assert Data(task, 1, pictures=("image", "aux_images")).tasks.fingerprint == found[0]


def test_tags_are_tokens_that_no_text_has(tmp_path):
    one, algorithm = made(tmp_path)
    tokenizer = algorithm.loaded.tokenizer
    tags = find_tags(tokenizer, ())
    assert len(set(tags)) == 3
    assert not set(tags[:2]) & set(tokenizer.encode("any text\n\twith <tags>"))
    with pytest.raises(UserError, match="two different tokens"):
        find_tags(tokenizer, ("a", "a"))
    one.store.close()


def test_held_out_answers_say_what_their_latents_show(tmp_path):
    one, algorithm = made(tmp_path)
    asked = algorithm._asked()
    held = algorithm.records.held_out(2)
    targets = algorithm.makes.targets(held[0])
    answer = LatentAnswer([], targets, targets, 0, True)
    (first, *_) = shown_latents(asked, held[0], answer)
    assert first["picture"] == first["target"]
    assert first["picture"].startswith("data:image/png;base64,")
    assert first["norm"] == first["target_norm"]
    one.store.close()


def test_the_clock_of_the_gate_counts_on_and_an_evaluation_says_how_far_it_is(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("burnish.training.trainer.TELL_S", 0.0)
    one, _ = made(tmp_path, gate="measure", gate_samples=2)
    told = []
    one.tell = told.append
    finish(one)
    gate = [event for event in told if isinstance(event, Preparing)]
    assert [event.done for event in gate] == [16, 24]
    seconds = [event.seconds for event in gate]
    assert seconds == sorted(seconds)
    first = [event for event in told if isinstance(event, Evaluating) and not event.step]
    assert [(event.doing, event.done == event.total) for event in first] == [("sampler", True)]
