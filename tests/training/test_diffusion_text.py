import json
import math
import random

import numpy as np
import pytest
import torch
from training_cases import assert_same, finish, finish_with_stops, outcome

from burnish.config import Config, load
from burnish.config.recipes import resolve
from burnish.lm import load_model
from burnish.lm.diffusion.masked_rows import TokenRow, Unit, both_ways, packed_input, unit_losses
from burnish.training import build
from burnish.training.diffusion_rows import held_out_losses, setting_faults
from burnish.training.events import HeldOut, Prepared, StepDone
from burnish.training.packed_text import ended_document_starts

WORDS = ("red", "blue", "one", "two", "cat", "dog", "runs", "sits")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path_factory.mktemp("cache")))


def write_text(folder, count=60):
    rng = random.Random(3)
    rows = [" ".join(rng.choices(WORDS, k=rng.randint(2, 9))) + "." for _ in range(count)]
    (folder / "text.jsonl").write_text("".join(json.dumps({"body": row}) + "\n" for row in rows))
    return rows


def make(folder, train=(), run="run", **more):
    table = {
        "steps": 4,
        "train": {
            "kind": "diffusion",
            "on": "text",
            "data": "text.jsonl",
            "sequence": 48,
            "batch": 4,
            "held_out_share": 0.3,
            **dict(train),
        },
        "model": {
            "path": "new",
            "new": {"layers": 2, "width": 32, "heads": 2, "context": 64},
            "device": "cpu",
            "dtype": "float64",
            "threads": 1,
        },
        "optimiser": {"learning_rate": 3e-3},
        "evaluation": {"prompts": 6},
        "checkpoint": {"every": 2},
        **more,
    }
    return build(load(Config, table), folder / run, root=folder)


def test_a_boundary_ends_its_document():
    ids = np.array([[5, 6, 0, 7, 0, 0, 8], [0, 5, 5, 5, 5, 5, 0]])
    wanted = [[0, 0, 0, 3, 3, 5, 6], [0, 1, 1, 1, 1, 1, 1]]
    assert ended_document_starts(ids, 0).tolist() == wanted


def test_rows_are_the_text_behind_one_another(tmp_path):
    texts = write_text(tmp_path)
    one = make(tmp_path)
    rows = one.algorithm.rows
    tokens, decode = rows.text.tokens, rows.tokenizer.decode
    batch = [row for step in range(40) for row in rows.train(step)]
    one.store.close()
    assert all(len(row.ids) == row.count == 48 and row.prompt == 0 for row in batch)
    whole = set()
    for row in batch:
        for begin in np.unique(row.starts):
            ids = [i for i, s in zip(row.ids, row.starts, strict=True) if s == begin]
            assert tokens.boundary not in ids[:-1]
            if begin > 0 and ids[-1] == tokens.boundary:
                whole.add(decode(ids[:-1]))
    assert len(whole) > 10
    assert whole <= set(texts)
    held_out = {row.id for row in rows.held_out(6)}
    assert len(held_out) == 6
    assert all(name.startswith("held-out text") for name in held_out)


def test_documents_do_not_see_each_other_and_positions_restart(tmp_path):
    write_text(tmp_path)
    one = make(tmp_path)
    module, mask = one.algorithm.module, one.algorithm.module.architecture.mask_id
    first, second, third = [10, mask, 12], [mask, 14], [20, 21, mask, 22, mask]
    starts = [np.array([0, 0, 0, 3, 3]), np.zeros(5, np.int64)]
    inputs = packed_input([[*first, *second], third], starts, device=CPU, pad=mask, multiple=4)
    together = module(inputs)
    alone = [module(both_ways([ids], pad=0, device=CPU))[0] for ids in (first, second, third)]
    one.store.close()
    assert inputs.ids_RS.shape == (2, 8)
    assert torch.allclose(together[0, :5], torch.cat(alone[:2]), atol=1e-12)
    assert torch.allclose(together[1, :5], alone[2], atol=1e-12)
    assert together.isfinite().all()


@pytest.mark.parametrize("separate", [True, False])
def test_the_loss_is_that_of_documents_alone(tmp_path, separate):
    write_text(tmp_path)
    one = make(tmp_path, {"separate": separate})
    algorithm = one.algorithm
    batch = algorithm.batch(0)
    losses = unit_losses(algorithm.module, batch.units, CPU)
    for unit, loss in zip(batch.units, losses.tolist(), strict=True):
        starts = unit.row.starts if separate else np.zeros(48, np.int64)
        total = 0.0
        for begin in np.unique(starts):
            columns = np.flatnonzero(starts == begin)
            inside = np.isin(unit.places, columns)
            ids = tuple(unit.row.ids[i] for i in columns)
            row = TokenRow("part", ids, np.ones(len(ids), bool))
            part = Unit(row, unit.places[inside] - begin, unit.chances[inside])
            total += float(unit_losses(algorithm.module, [part], CPU).detach()) * len(ids)
        assert loss == pytest.approx(total / 48, rel=1e-9)
    one.store.close()
    assert (batch.rows[0].starts is not None) == separate


def test_bits_per_byte_are_the_loss_over_the_bytes(tmp_path):
    write_text(tmp_path)
    one = make(tmp_path, steps=1)
    before = one.algorithm.rows.held_out(6)
    losses = held_out_losses(one.algorithm.module, before, one.algorithm.setup.batches)
    batch = one.algorithm.batch(0)
    events = finish(one)
    first, last = (event for event in events if isinstance(event, HeldOut))
    # One token a byte: all but the boundary and the special tokens are bytes of the text.
    size = sum(token >= 4 for row in before for token in row.ids)
    wanted = math.fsum(loss * 48 for loss in losses) / math.log(2) / size
    assert first.measure == last.measure == "bits_per_byte"
    assert first.score.value == pytest.approx(wanted)
    assert "bound" in first.beside
    assert "frequency" in first.beside
    (done,) = (event for event in events if isinstance(event, StepDone))
    size = sum(token >= 4 for row in batch.rows for token in row.ids)
    # Uniform rates: all weights are 1, and the mean row loss is the step's loss.
    wanted = done.metrics["loss/total"] * 4 * 48 / math.log(2) / size
    assert done.metrics["text/bits_per_byte"] == pytest.approx(wanted)
    assert done.metrics["text/epoch"] > 0
    assert done.metrics["text/unigram_bits_per_byte"] > 0
    (told,) = (event for event in events if isinstance(event, Prepared))
    assert "documents" in told.line


@pytest.mark.parametrize("noise", [{}, {"rates": "p_pots", "probe_at": 1, "probe_rows": 2}])
def test_a_stopped_run_goes_on_bit_by_bit(tmp_path, noise):
    write_text(tmp_path)
    small = {"probe_rates": 6, "probe_masks": 2} if noise else {}
    finish(make(tmp_path, {**noise, **small}, "whole"))
    finish_with_stops(lambda: make(tmp_path, {**noise, **small}, "parts"), 3)
    assert_same(outcome(tmp_path / "whole"), outcome(tmp_path / "parts"))


def test_it_learns_from_text_and_continues_it(tmp_path):
    from burnish.api.models import continues_text, open_model, text_ids

    write_text(tmp_path)
    events = finish(make(tmp_path, {"batch": 16}, steps=60, checkpoint={"every": 60}))
    first, last = (event for event in events if isinstance(event, HeldOut))
    assert last.score.value < first.score.value - 1
    run = tmp_path / "run"
    assert continues_text(run)
    lm = open_model(run)
    ids = text_ids(lm, "red")
    assert lm.tokenizer.decode(ids) == "red"  # no boundary before it: documents end with it


@pytest.mark.parametrize(
    ("words", "canvas", "origin"),
    [
        ("train.on=text train.data=a.txt", 64, "left open: diffusion.toml has 16 for answers"),
        ("train.on=answers", 16, "diffusion.toml:"),
        ("train.on=text train.data=a.txt train.canvas=32", 32, "command line"),
        ("train.on=text train.data=a.txt train.canvas=16", 16, "command line"),
    ],
)
def test_the_canvas_of_a_recipe_for_answers_does_not_stand_in_the_way_of_text(
    words, canvas, origin
):
    found = resolve(["diffusion", *words.split()]).resolved
    assert found.value.train.canvas == canvas
    assert origin in found.origins["train.canvas"]
    faults = [one.partition(",")[0] for one in setting_faults(found.value.train)]
    assert faults == ([f"train.canvas is {canvas}"] if origin == "command line" else [])


def test_text_is_learned_by_the_recipe_for_answers(tmp_path, monkeypatch):
    write_text(tmp_path)
    monkeypatch.chdir(tmp_path)
    small = "model.path=new model.new.layers=1 model.new.width=16 model.new.heads=2"
    rows = "train.sequence=16 train.batch=2 train.on=text train.data=text.jsonl steps=1"
    asked = resolve(["diffusion", *small.split(), *rows.split(), "model.new.context=64"])
    one = build(asked.resolved, tmp_path / "run", root=asked.root)
    assert one.algorithm.canvas == 0
    one.store.close()


def test_other_prompt_tokens_may_be_masked_by_chance(tmp_path):
    task = {"kind": "arithmetic", "level": 1}

    def rows(rest, folder):
        train = {
            "kind": "diffusion",
            "batch": 40,
            "canvas": 4,
            "syntax": "markdown",
            "syntax_rest": rest,
        }
        table = {
            "task": task,
            "train": train,
            "experts": {"field": "answer"},
            "model": {"path": "diffusion:tiny"},
        }
        one = build(load(Config, table), tmp_path / folder, root=tmp_path)
        found, again = one.algorithm.rows.train(0), one.algorithm.rows.train(0)
        one.store.close()
        assert all((a.eligible == b.eligible).all() for a, b in zip(found, again, strict=True))
        return found

    none, half, every = rows(0.0, "a"), rows(0.5, "b"), rows(1.0, "c")
    assert all(row.eligible.all() for row in every)
    for few, some in zip(none, half, strict=True):
        assert few.ids == some.ids
        assert (some.eligible | ~few.eligible).all()
    others = sum((~row.eligible).sum() for row in none)
    joined = sum((b.eligible & ~a.eligible).sum() for a, b in zip(none, half, strict=True))
    assert 0.4 < joined / others < 0.6


def test_what_is_tried_and_measured_is_the_text(tmp_path, capsys, monkeypatch):
    from burnish.api.variance import read_rows
    from burnish.cli.entry import run

    texts = write_text(tmp_path)
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        'train = { kind = "diffusion", on = "text", data = "text.jsonl", sequence = 20 }\n'
        'model = { path = "diffusion:tiny" }\n'
    )
    assert run(["try", str(recipe)]) == 0
    said = capsys.readouterr().out
    assert "document 1" in said
    assert "masked:" in said
    rows = read_rows(str(recipe), load_model("diffusion:tiny", device="cpu"), 4)
    assert [row.text for row in rows] == [text[:20] for text in texts[:4]]
    assert all(len(row.ids) <= 20 and row.prompt_length == 0 for row in rows)


def test_a_run_probes_as_the_public_function_does(tmp_path):
    from burnish.models.masked_diffusion import Noise, probe_table, token_nll
    from burnish.training.diffusion_rows import probed_losses

    write_text(tmp_path)
    one = make(tmp_path, {"separate": False})
    algorithm, module = one.algorithm, one.algorithm.module
    rows = algorithm.rows.probe(3)
    found = probed_losses(module, rows, 6, 4, 9, algorithm.setup.batches, algorithm.noise)

    ids = torch.tensor([row.ids for row in rows])
    mask = module.architecture.mask_id

    def losses_of(noised, places):
        hidden = noised.ids_PBL[0].tolist()
        logits = module.logits(module(both_ways(hidden, pad=0, device=CPU)))
        return noised.loss([token_nll(logits, ids[places], mask)]).row_B

    whole, drawn = torch.ones_like(ids).bool(), torch.Generator().manual_seed(9)
    sizes = {"noise": Noise(), "rates": 6, "masks": 4}
    wanted = probe_table(losses_of, ids, whole, mask, drawn, **sizes)
    one.store.close()
    assert found.losses.shape == (3, 6, 4)
    assert torch.equal(found.t_grid, wanted.t_grid)
    assert torch.equal(found.chances, wanted.chances)
    assert torch.allclose(found.losses, wanted.losses, rtol=1e-9)
