import itertools
import json
import math
import random
import shutil
import signal
import time
import tracemalloc

import numpy as np
import pytest
import torch
from training_cases import assert_same, finish, finish_with_stops, outcome, stop_after

from burnish.config import Config, load, render
from burnish.errors import RunChanged, UserError
from burnish.lm import load_model
from burnish.lm.model_input import ModelInput
from burnish.lm.tokenizer import Tokenizer
from burnish.store import RunStore
from burnish.tasks.corpus import Corpus
from burnish.training import build, token_cache
from burnish.training.devices import World
from burnish.training.events import HeldOut, Prepared, StepDone
from burnish.training.packed_text import (
    PackedText,
    document_starts,
    shuffled,
    window_start,
    windows,
)
from burnish.training.token_cache import open_tokens, token_bytes
from burnish.training.trainable import start_model
from warm import start

WORDS = ("red", "blue", "one", "two", "cat", "dog", "runs", "sits")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("BURNISH_CACHE", str(folder))
    return folder


def write_text(folder, count=60, name="text.jsonl"):
    rng = random.Random(3)
    rows = [" ".join(rng.choices(WORDS, k=rng.randint(3, 25))) + "." for _ in range(count)]
    (folder / name).write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    return rows


def config(folder, train=(), **more):
    table = {
        "steps": 6,
        "train": {
            "kind": "pretrain",
            "data": str(folder / "text.jsonl"),
            "sequence": 32,
            "batch": 4,
            "held_out": 0.2,
            **dict(train),
        },
        "model": {
            "path": "new",
            "new": {"layers": 2, "width": 32, "heads": 2, "context": 256},
            "device": "cpu",
            "threads": 1,
        },
        "optimiser": {"learning_rate": 3e-3, "weight_decay": 0.1, "decay": "matrices"},
        "evaluation": {"prompts": 8},
        **more,
    }
    return load(Config, table)


def make(folder, train=(), run="run", **more):
    return build(config(folder, train, **more), folder / run, root=folder)


@pytest.fixture
def tokenizer():
    from burnish.lm.new_model import cached_tiny_model

    return Tokenizer.from_folder(cached_tiny_model())


def test_the_stream_is_every_document_behind_a_boundary(tmp_path, tokenizer):
    rows = write_text(tmp_path)
    tokens = open_tokens(Corpus((str(tmp_path / "text.jsonl"),)), tokenizer, held_out=0.2)
    texts = []
    for stream in (tokens.train, tokens.held_out):
        ids = stream.ids.tolist()
        assert ids[0] == ids[-1] == tokens.boundary
        cuts = [place for place, token in enumerate(ids) if token == tokens.boundary]
        assert len(cuts) - 1 == stream.count.documents
        pieces = [ids[a + 1 : b] for a, b in itertools.pairwise(cuts)]
        texts.append([tokenizer.decode(piece) for piece in pieces])
        assert stream.count.bytes == sum(len(t.encode()) for t in texts[-1])
    assert sorted(texts[0] + texts[1]) == sorted(rows)
    assert len(texts[1]) > 3
    assert texts[0] == [row for row in rows if row in set(texts[0])]
    counts = np.bincount(tokens.train.ids[:-1], minlength=260)
    assert tokens.frequencies.tolist() == counts.tolist()


def test_more_text_moves_no_document_to_the_other_side(tmp_path, tokenizer):
    write_text(tmp_path)
    few = open_tokens(Corpus((str(tmp_path / "text.jsonl"),)), tokenizer, held_out=0.2)
    write_text(tmp_path, 90, "more.jsonl")
    both = Corpus((str(tmp_path / "text.jsonl"), str(tmp_path / "more.jsonl")))
    many = open_tokens(both, tokenizer, held_out=0.2)
    size = few.held_out.count.tokens - 1
    assert many.held_out.ids[:size].tolist() == few.held_out.ids[:size].tolist()


def test_tokens_are_written_once_and_again_for_other_text_or_another_tokenizer(
    tmp_path, tokenizer, cache, monkeypatch
):
    from burnish.lm.new_model import train_bpe

    rows = write_text(tmp_path)
    corpus = Corpus((str(tmp_path / "text.jsonl"),))
    first = open_tokens(corpus, tokenizer, held_out=0.2)
    monkeypatch.setattr(token_cache, "_write", lambda *a: pytest.fail("written again"))
    assert open_tokens(corpus, tokenizer, held_out=0.2).folder == first.folder
    monkeypatch.undo()
    monkeypatch.setenv("BURNISH_CACHE", str(cache))
    assert open_tokens(corpus, tokenizer, held_out=0.1).folder != first.folder
    train_bpe(rows, 280, tmp_path / "bpe")
    bpe = Tokenizer.from_folder(tmp_path / "bpe")
    other = open_tokens(corpus, bpe, held_out=0.2)
    assert other.folder != first.folder
    assert other.train.count.bytes == first.train.count.bytes
    assert other.train.count.tokens < first.train.count.tokens
    assert token_bytes(bpe)[other.train.ids].sum() == other.train.count.bytes


@pytest.mark.parametrize("kind", ["added", "prefix space", "normaliser"])
def test_bytes_are_those_of_the_text_whatever_the_tokenizer_adds(tmp_path, kind):
    from tokenizers import AddedToken, normalizers, pre_tokenizers

    from burnish.lm.new_model import train_bpe

    rows = [
        f"{word} \u65e5\u672c\u8a9e caf\u00e9 {i}" for i in range(30) for word in ("one", "two")
    ]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    train_bpe(rows, 300, tmp_path / "bpe")
    bpe = Tokenizer.from_folder(tmp_path / "bpe")
    if kind == "added":
        bpe.backend.add_tokens([AddedToken("\u65e5\u672c\u8a9e", special=False)])
    elif kind == "prefix space":
        bpe.backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    else:
        bpe.backend.normalizer = normalizers.NFKD()
    corpus = Corpus((str(tmp_path / "text.jsonl"),))
    text = PackedText.__new__(PackedText)
    text.corpus, text.tokenizer, text.share, text.world = corpus, bpe, 0.0, World()
    train = text.tokens.train
    assert text.bytes_of(train.ids) == pytest.approx(train.count.bytes)
    if kind == "added":
        assert token_bytes(bpe)[train.ids].sum() == train.count.bytes


def test_text_that_looks_like_a_boundary_is_none(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text("before <|endoftext|> after <|im_end|>")
    tokens = open_tokens(Corpus((str(tmp_path / "a.txt"),)), tokenizer, held_out=0.0)
    ids = tokens.train.ids.tolist()
    assert [place for place, token in enumerate(ids) if token < 4] == [0, len(ids) - 1]
    assert tokenizer.decode(ids[1:-1]) == "before <|endoftext|> after <|im_end|>"


def test_pieces_and_batches_do_not_change_the_ids(tmp_path, monkeypatch):
    from burnish.lm.new_model import train_bpe
    from burnish.tasks import corpus as corpus_module

    rows = write_text(tmp_path)
    train_bpe(rows, 280, tmp_path / "bpe")
    tokenizer = Tokenizer.from_folder(tmp_path / "bpe")
    (tmp_path / "a.txt").write_text(" ".join(rows))
    corpus = Corpus((str(tmp_path / "a.txt"),))
    whole = open_tokens(corpus, tokenizer, held_out=0.0).train.ids.tolist()
    assert whole[1:-1] == tokenizer.encode(" ".join(rows))
    monkeypatch.setattr(corpus_module, "PIECE", 40)
    monkeypatch.setattr(token_cache, "BATCH", 70)
    monkeypatch.setattr(token_cache, "LAYOUT", 99)
    assert open_tokens(corpus, tokenizer, held_out=0.0).train.ids.tolist() == whole


def test_a_corpus_is_tokenised_in_bounded_memory(tmp_path, tokenizer, monkeypatch):
    from burnish.tasks import corpus as corpus_module

    for module, name in (
        (corpus_module, "PIECE"),
        (corpus_module, "BLOCK"),
        (token_cache, "BATCH"),
    ):
        monkeypatch.setattr(module, name, 1 << 15)
    path = tmp_path / "large.txt"
    path.write_bytes((b"some words of a long text " * 40 + b"\n") * 8_000)
    corpus = Corpus((str(path),), separator="\n")
    tracemalloc.start()
    tokens = open_tokens(corpus, tokenizer, held_out=0.0)
    rows = [tokens.train.read(i * 1000, 33) for i in range(64)]
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert tokens.train.count.documents == 8_000
    assert most < path.stat().st_size / 3
    assert len(rows) == 64


def swapped(data):
    """The bytes with two unequal ids of two bytes in each other's place, not the first or the last."""
    ids = np.frombuffer(data, "<u2").copy()
    place = next(k for k in range(1, len(ids) - 2) if ids[k] != ids[k + 1])
    ids[[place, place + 1]] = ids[[place + 1, place]]
    return ids.tobytes()


@pytest.mark.parametrize("name", ["counts.json", "train.bin", "held_out.bin", "frequencies.npy"])
def test_a_cache_damaged_within_its_limits_is_written_again(tmp_path, tokenizer, caplog, name):
    write_text(tmp_path)
    corpus = Corpus((str(tmp_path / "text.jsonl"),))
    tokens = open_tokens(corpus, tokenizer, held_out=0.2)
    file = tokens.folder / name
    whole = file.read_bytes()
    if name == "counts.json":
        changed = whole.replace(b'"documents":', b'"documents":1', 1)
    elif name == "frequencies.npy":
        counts = tokens.frequencies[::-1]
        changed = whole[: -counts.nbytes] + counts.tobytes()
        assert len(changed) == len(whole)
    else:
        changed = swapped(whole)
    file.write_bytes(changed)
    again = open_tokens(corpus, tokenizer, held_out=0.2)
    assert f"{name}: the cached tokens are damaged" in caplog.text
    assert (again.folder / name).read_bytes() == whole


def test_the_fingerprint_is_of_every_id_in_its_order(tmp_path, tokenizer):
    def opened(rows):
        path = tmp_path / "text.jsonl"
        path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
        return open_tokens(Corpus((str(path),)), tokenizer, held_out=0.2)

    rows = write_text(tmp_path)
    first = opened(rows)
    assert opened(rows).fingerprint == first.fingerprint
    turned = opened(rows[::-1])
    assert turned.frequencies.tolist() == first.frequencies.tolist()
    assert turned.fingerprint != first.fingerprint
    # A held-out text whose letters in the other order are held out too.
    held = {tokenizer.decode(ids.tolist()) for ids in pieces_of(first.held_out, first.boundary)}
    others = [
        opened([row[::-1] if row == chosen else row for row in rows]) for chosen in sorted(held)
    ]
    size = first.held_out.count.tokens
    same_size = [one for one in others if one.held_out.count.tokens == size]
    assert same_size
    for one in same_size:
        assert one.train.ids.tolist() == first.train.ids.tolist()
        assert one.fingerprint != first.fingerprint


def pieces_of(stream, boundary):
    ends = np.flatnonzero(stream.ids == boundary)
    return [stream.ids[begin + 1 : end] for begin, end in itertools.pairwise(ends)]


def test_another_boundary_has_tokens_of_its_own(tmp_path, tokenizer, monkeypatch):
    write_text(tmp_path)
    corpus = Corpus((str(tmp_path / "text.jsonl"),))
    first = open_tokens(corpus, tokenizer, held_out=0.0)
    monkeypatch.setattr(token_cache, "boundary_id", lambda tokenizer: 2)
    other = open_tokens(corpus, tokenizer, held_out=0.0)
    assert (first.boundary, other.boundary) == (0, 2)
    assert first.folder.is_dir()
    assert other.train.ids[0] == 2


def test_a_function_that_reads_another_text_is_tokenised_again(tmp_path, tokenizer, caplog):
    (tmp_path / "words.txt").write_text("one two three")
    (tmp_path / "mine.py").write_text(
        "from pathlib import Path\n"
        "def documents():\n"
        "    yield from (Path(__file__).parent / 'words.txt').read_text().split()\n"
    )
    corpus = Corpus((f"{tmp_path / 'mine.py'}:documents",))
    first = open_tokens(corpus, tokenizer, held_out=0.0)
    assert "cached" not in first.line()
    same = open_tokens(corpus, tokenizer, held_out=0.0)
    assert "; cached tokens of 20" in same.line()
    (tmp_path / "words.txt").write_text("one too three")
    other = open_tokens(corpus, tokenizer, held_out=0.0)
    assert "the first texts are others than those in the cache" in caplog.text
    assert tokenizer.decode(other.train.ids.tolist()[5:8]) == "too"


def test_a_boundary_that_is_not_special_cannot_be_written_in_a_text(tmp_path):
    from burnish.lm.new_model import train_bpe

    train_bpe(["one two three"], 280, tmp_path / "bpe")
    file = tmp_path / "bpe" / "tokenizer.json"
    table = json.loads(file.read_text())
    for token in table["added_tokens"]:
        token["special"] = False
    file.write_text(json.dumps(table))
    tokenizer = Tokenizer.from_folder(tmp_path / "bpe")
    (tmp_path / "a.txt").write_text(f"one{token_cache.END_OF_TEXT}two")
    tokens = open_tokens(Corpus((str(tmp_path / "a.txt"),)), tokenizer, held_out=0.0)
    ids = tokens.train.ids.tolist()
    assert [i for i, one in enumerate(ids) if one == tokens.boundary] == [0, len(ids) - 1]


def test_equal_texts_with_other_blanks_at_the_ends_fall_on_one_side(tmp_path, tokenizer):
    rows = write_text(tmp_path, count=40)
    blanks = ("", " ", "\n\n", "\t")
    lines = [json.dumps({"text": a + row + b}) for row in rows for a in blanks for b in blanks]
    (tmp_path / "many.jsonl").write_text("\n".join(lines))
    tokens = open_tokens(Corpus((str(tmp_path / "many.jsonl"),)), tokenizer, held_out=0.5)
    sides = [set(), set()]
    for side, stream in zip(sides, (tokens.train, tokens.held_out), strict=True):
        ends = np.flatnonzero(stream.ids == tokens.boundary)
        for begin, end in itertools.pairwise(ends):
            side.add(tokenizer.decode(stream.ids[begin + 1 : end].tolist()).strip())
    assert all(sides)
    assert not sides[0] & sides[1]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 65, 1000])
def test_the_shuffle_is_a_permutation(count):
    found = [shuffled(place, count, 5) for place in range(count)]
    assert sorted(found) == list(range(count))
    if count > 60:
        assert found != sorted(found)
        assert found != [shuffled(place, count, 6) for place in range(count)]


def test_an_epoch_reads_every_token_once_without_padding(tmp_path, tokenizer):
    write_text(tmp_path)
    stream = open_tokens(Corpus((str(tmp_path / "text.jsonl"),)), tokenizer, held_out=0.2).train
    size, length = stream.count.tokens - 1, 16
    count = windows(stream, length)
    assert size - length < count * length <= size
    orders = []
    for epoch in range(2):
        indices = range(epoch * count, (epoch + 1) * count)
        places = [window_start(stream, length, i, 7) for i in indices]
        orders.append(places)
        covered = sorted((place + k) % size for place in places for k in range(length))
        assert len(set(covered)) == len(covered) == count * length
    assert sorted(p % length for p in orders[0]) != sorted(p % length for p in orders[1])
    ids = stream.ids.tolist()[:-1]
    for place in orders[0]:
        wanted = [ids[(place + k) % size] for k in range(length + 1)]
        assert stream.read(place, length + 1).tolist() == wanted


def test_positions_restart_with_each_document_of_a_row():
    rows = np.array([[5, 6, 0, 7, 8, 0, 9], [0, 5, 5, 5, 5, 5, 0]])
    assert document_starts(rows, 0).tolist() == [[0, 0, 2, 2, 2, 5, 5], [0, 0, 0, 0, 0, 0, 6]]


@pytest.mark.parametrize("separate", [True, False])
def test_the_loss_is_that_of_documents_alone(tmp_path, separate):
    """Worked by hand: every piece of every row through the model on its own."""
    write_text(tmp_path)
    trainer = make(tmp_path, {"separate": separate, "sequence": 64})
    algorithm, module = trainer.algorithm, trainer.trainable.module
    batch = algorithm.batch(0)
    assert (batch.ids_RS1 == 0).sum() > 4
    nll = 0.0
    for row in batch.ids_RS1.tolist():
        cuts = [0, *(k for k in range(1, 64) if row[k] == 0 and separate), 64]
        for begin, end in itertools.pairwise(cuts):
            ids = torch.tensor([row[begin:end]])
            hidden = module(ModelInput(ids, torch.arange(end - begin)[None]))
            logp = module.logits(hidden)[0].log_softmax(-1)
            target = torch.tensor(row[begin + 1 : end + 1])
            nll -= float(logp.gather(1, target[:, None]).sum().detach())
    for tokens in (1, 130, 10_000):
        micros = list(algorithm.micro_batches(batch, tokens))
        assert len(micros) == {1: 4, 130: 2, 10_000: 1}[tokens]
        found = sum(float(algorithm.loss(module, micro).total.detach()) for micro in micros)
        assert found == pytest.approx(nll / (4 * 64), rel=1e-5)
    trainer.store.close()


def test_bits_per_byte_are_of_the_text(tmp_path):
    write_text(tmp_path)
    trainer = make(tmp_path, steps=2, evaluation={"prompts": 100})
    events = finish(trainer)
    algorithm = trainer.algorithm
    done = [event for event in events if isinstance(event, StepDone)]
    targets = algorithm.batch(0).targets
    size = int((targets >= 4).sum())
    metrics = done[0].metrics
    wanted = metrics["loss/total"] * targets.size / math.log(2) / size
    assert metrics["text/bits_per_byte"] == pytest.approx(wanted)
    assert metrics["length/tokens"] == targets.size == 128
    counts = algorithm.text.tokens.frequencies + 1
    bits = -np.log2(counts / counts.sum())[targets].sum() / size
    assert metrics["text/unigram_bits_per_byte"] == pytest.approx(bits)
    before, after = (event for event in events if isinstance(event, HeldOut))
    assert before.measure == "bits_per_byte"
    assert before.score.value == pytest.approx(8.0, abs=1.0)
    assert after.score.value < before.score.value
    assert "by their frequency: 3." in before.beside
    (told,) = (event for event in events if isinstance(event, Prepared))
    assert "documents" in told.line
    assert "epochs" in told.line


def test_held_out_bits_are_all_bits_over_all_bytes(tmp_path):
    write_text(tmp_path)
    trainer = make(tmp_path, evaluation={"prompts": 5})
    algorithm = trainer.algorithm
    scores = algorithm.evaluate(0)
    assert len(scores.marks) == 5
    stream, length = algorithm.text.tokens.held_out, 32
    count = windows(stream, length)
    rows = [stream.read(k * count // 5 * length, length + 1) for k in range(5)]
    module, nats, size = trainer.trainable.module, 0.0, 0
    for row in rows:
        starts = document_starts(row[None, :-1], 0)[0]
        for begin in sorted(set(starts.tolist())):
            end = int((starts <= begin).sum()) if begin == starts[-1] else None
            columns = [k for k in range(length) if starts[k] == begin]
            assert end is None or end == length
            ids = torch.tensor([row[columns].tolist()])
            logits = module.logits(module(ModelInput(ids, torch.arange(len(columns))[None])))
            target = torch.tensor([row[k + 1] for k in columns])
            nats -= float(logits[0].log_softmax(-1).gather(1, target[:, None]).sum().detach())
        size += int((row[1:] >= 4).sum())
    assert sum(scores.marks) / 5 == pytest.approx(nats / math.log(2) / size, rel=1e-5)
    trainer.store.close()


def test_it_learns_more_than_the_frequencies_of_letters(tmp_path):
    rows = [{"text": "abcd" * (5 + n)} for n in range(40)]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    more = {"steps": 30, "optimiser": {"learning_rate": 1e-2, "schedule": "cosine"}}
    events = finish(make(tmp_path, **more))
    after = [event for event in events if isinstance(event, HeldOut)][-1]
    assert float(after.beside.rpartition(" ")[2]) == pytest.approx(2.1, abs=0.15)
    assert after.score.value < 1.0


@pytest.mark.parametrize("stops", [(3,), ("2 saved", 3, 5)])
def test_stopped_and_continued_equals_uninterrupted(tmp_path, stops):
    write_text(tmp_path, 12)
    settings = {"checkpoint": {"every": 2, "keep": 1}, "evaluation": {"prompts": 4, "every": 3}}
    whole = make(tmp_path, run="whole", **settings)
    finish(whole)
    assert whole.state.step == 6
    assert windows(whole.algorithm.text.tokens.train, 32) < 6 * 4, "more than one epoch"
    finish_with_stops(lambda: make(tmp_path, **settings), *stops)
    assert_same(outcome(tmp_path / "run"), outcome(tmp_path / "whole"))


def test_killed_and_started_again_equals_uninterrupted(tmp_path):
    write_text(tmp_path)
    settings = {"checkpoint": {"every": 2, "keep": 1}, "steps": 40}
    finish(make(tmp_path, run="whole", **settings))
    (tmp_path / "recipe.toml").write_text(render(config(tmp_path, **settings)))
    words = ["train", "recipe.toml", "run.name=run", "run.folder=."]
    child = start("burnish", words, folder=tmp_path, log=tmp_path / "log")
    while not list((tmp_path / "run" / "checkpoints").glob("step-*")) and child.is_alive():
        time.sleep(0.01)
    child.kill()
    child.join()
    assert child.exitcode == -signal.SIGKILL, (tmp_path / "log").read_text()
    finish(make(tmp_path, **settings))
    assert_same(outcome(tmp_path / "run"), outcome(tmp_path / "whole"))


def test_text_that_changed_is_not_continued(tmp_path):
    write_text(tmp_path)
    stop_after(make(tmp_path), 3)
    kept = (tmp_path / "text.jsonl").read_bytes()
    (tmp_path / "text.jsonl").write_bytes(kept.replace(b"red", b"RED", 1))
    with pytest.raises(RunChanged, match=r"on other data .*restore the data"):
        make(tmp_path)
    (tmp_path / "text.jsonl").write_bytes(kept)
    finish(make(tmp_path))
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        assert store.about.data_hash


@pytest.mark.parametrize(
    "others",
    [[f"omega{i:02}" for i in range(80)], [f"alpha{i:02}" for i in reversed(range(80))]],
    ids=["other texts", "another order"],
)
def test_a_function_whose_texts_changed_is_not_continued(tmp_path, others):
    words = tmp_path / "words.txt"
    own = " ".join(f"alpha{i:02}" for i in range(80))
    words.write_text(own)
    (tmp_path / "mine.py").write_text(
        "from pathlib import Path\n"
        "def documents():\n"
        "    yield from (Path(__file__).parent / 'words.txt').read_text().split()\n"
    )
    given = {"data": "mine.py:documents"}
    more = {"checkpoint": {"every": 1}}
    stop_after(make(tmp_path, given, **more), 3)
    words.write_text(" ".join(others))
    with pytest.raises(
        UserError, match="its texts are others than those that this run was started"
    ):
        finish(make(tmp_path, given, **more))
    words.write_text(own)
    finish(make(tmp_path, given, **more))


# --- afterwards


def test_pretrained_then_sft_then_grpo(tmp_path):
    """A model from scratch goes through the three trainings, and samples in between."""
    write_text(tmp_path)
    finish(make(tmp_path, steps=3))
    model = tmp_path / "run" / "checkpoints" / "step-000003"
    small = {"device": "cpu", "threads": 1}
    common = {"steps": 2, "task": {"kind": "arithmetic"}, "evaluation": {"prompts": 2}}
    sft = {
        **common,
        "train": {"kind": "sft", "batch": 2},
        "model": {"path": str(model), **small},
        "experts": {"field": "answer"},
    }
    finish(build(load(Config, sft), tmp_path / "sft"))
    tuned = tmp_path / "sft" / "checkpoints" / "step-000002"
    grpo = {
        **common,
        "model": {"path": str(tuned), **small},
        "rewards": [{"kind": "length", "unit": "characters", "max": 3, "edge": 9}],
        "rollout": {"prompts": 2, "samples": 2, "max_tokens": 4, "max_prompt_tokens": 200},
    }
    events = finish(build(load(Config, grpo), tmp_path / "grpo"))
    assert sum(isinstance(event, StepDone) for event in events) == 2
    last = load_model(tmp_path / "grpo" / "checkpoints" / "step-000002", device="cpu")
    first = load_model(model, device="cpu")
    assert not torch.equal(last.module.head_weight, first.module.head_weight)
    assert last.tokenizer.eos_ids == first.tokenizer.eos_ids


def test_a_run_is_a_model_and_its_newest_checkpoint_is_taken(tmp_path):
    write_text(tmp_path)
    finish(make(tmp_path, steps=2, run="base"))
    table = {"steps": 1, "task": {"kind": "arithmetic"}, "evaluation": {"prompts": 2}}
    table["train"] = {"kind": "sft", "batch": 2}
    table["model"] = {"path": "base", "device": "cpu", "threads": 1}
    table["experts"] = {"field": "answer"}
    trainer = build(load(Config, table), tmp_path / "sft", root=tmp_path)
    trainer.store.close()
    newest = tmp_path / "base" / "checkpoints" / "step-000002"
    assert start_model(trainer.config) == newest
    shutil.rmtree(tmp_path / "base" / "checkpoints")
    with pytest.raises(UserError, match="run 'base' has no checkpoint yet"):
        build(load(Config, table), tmp_path / "other", root=tmp_path)


def test_the_end_says_what_the_deep_layers_are_worth(tmp_path):
    write_text(tmp_path)
    finish(make(tmp_path, steps=2, layer_metrics_every=1))
    store = RunStore.open(tmp_path / "run")
    first, last = (one.summary for one in store.evaluations("held_out"))
    store.close()
    assert "without_last_quarter" not in first
    assert last["without_last_quarter"] > 0
    assert last["without_last_quarter"] != last["score"][0]
    assert "; without the last 1 layer: " in last["beside"]


def test_it_can_be_a_stage_before_another_training(tmp_path):
    write_text(tmp_path)
    stage = {
        "name": "read",
        "steps": 2,
        "train": {"kind": "pretrain", "data": "text.jsonl", "sequence": 32, "batch": 2},
    }
    table = {
        "steps": 1,
        "stages": [stage],
        "train": {"kind": "sft", "batch": 2},
        "experts": {"field": "answer"},
        "task": {"kind": "arithmetic"},
        "model": {"path": "tiny", "device": "cpu", "threads": 1},
        "evaluation": {"prompts": 2},
    }
    events = finish(build(load(Config, table), tmp_path / "run", root=tmp_path))
    stages = [event.stage for event in events if isinstance(event, StepDone)]
    assert stages == ["read", "read", ""]


def test_continuations_of_held_out_text_are_stored_and_a_run_continues_text(tmp_path):
    from burnish import generate
    from burnish.api.models import continues_text, open_model, text_ids

    write_text(tmp_path)
    finish(make(tmp_path, steps=2))
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        last = store.evaluations("held_out")[-1]
        shown = [one for one in store.samples() if one.split == "eval:held_out"]
    shown = [one for one in shown if one.step == last.step]
    assert 1 <= len(shown) <= 4
    assert all(one.task.prompt and one.trajectory.loss_mask[-1] == 1 for one in shown)
    for one in shown:
        assert one.reward.value == pytest.approx(-last.summary["marks"][one.index])
    run = tmp_path / "run"
    assert continues_text(run)
    assert continues_text(run / "checkpoints" / "step-000002")
    lm = open_model(run)
    ids = text_ids(lm, "red <|im_end|>")
    assert ids[0] == lm.tokenizer.backend.token_to_id("<|endoftext|>")
    assert lm.tokenizer.backend.token_to_id("<|im_end|>") not in ids
    by_default = generate(run, "red cat", max_tokens=4)
    assert by_default[0].prompt_ids == tuple(text_ids(lm, "red cat"))
    asked = generate(run, "red cat", max_tokens=4, raw=False)
    assert asked[0].prompt_ids != by_default[0].prompt_ids
    with pytest.raises(UserError, match="raw: prompt 0 is a conversation of roles"):
        generate(run, "red", system="Be brief.", raw=True)


@pytest.mark.parametrize("name", ["counts.json", "train.bin", "held_out.bin", "frequencies.npy"])
@pytest.mark.parametrize("junk", ["junk", "ids"])
def test_a_damaged_cache_is_named_and_written_again(tmp_path, tokenizer, caplog, name, junk):
    write_text(tmp_path)
    corpus = Corpus((str(tmp_path / "text.jsonl"),))
    tokens = open_tokens(corpus, tokenizer, held_out=0.2)
    whole = {path.name: path.read_bytes() for path in tokens.folder.iterdir()}
    size = len(whole[name])
    # Of the right size: ids beyond the vocabulary, or bytes that are no JSON and no array.
    (tokens.folder / name).write_bytes(b"\xff" * size if junk == "ids" else b"junk")
    again = open_tokens(corpus, tokenizer, held_out=0.2)
    assert f"{name}: the cached tokens are damaged" in caplog.text
    assert {path.name: path.read_bytes() for path in again.folder.iterdir()} == whole


@pytest.mark.parametrize(
    ("content", "train", "line"),
    [
        ("", {}, "no text in it; expected at least one document"),
        ('{"text": "  "}\n', {}, "no text in it"),
        (
            '{"text": "short"}\n',
            {"held_out": 0.0},
            "6 tokens to train on; expected at least one seq",
        ),
        ('{"words": "x"}\n', {}, "no column of texts"),
        ('{"text": "x"}\n', {"column": "txt"}, r"no column 'txt' of texts.*Did you mean 'text'"),
    ],
)
def test_a_corpus_that_cannot_be_trained_on_is_refused(tmp_path, content, train, line):
    (tmp_path / "text.jsonl").write_text(content)
    with pytest.raises(UserError, match=line) as error:
        finish(make(tmp_path, train))
    assert "\n" not in str(error.value)


def test_ids_beyond_the_vocabulary_are_refused(tmp_path):
    from burnish.lm.new_model import tiny_model, train_bpe

    rows = write_text(tmp_path)
    folder = tiny_model(tmp_path / "model")
    train_bpe(rows, 280, folder)
    with pytest.raises(UserError, match="ids up to 279 and its vocabulary 260 rows"):
        make(tmp_path, model={"path": str(folder), "device": "cpu"})
