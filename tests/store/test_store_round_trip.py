"""What goes into a run comes out of it, to the last bit, by our reader and by plain SQL."""

from __future__ import annotations

import json
import math
import sqlite3
import struct
import threading

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from store_samples import make_reward, make_sample, make_step

from burnish.errors import StoreError, UserError
from burnish.records import Author, Evidence, Reward, Span, Status, Visibility
from burnish.store import RunStatus, RunStore, StoredSample
from burnish.store.sample import COLUMNS, decode, encode, flatten


@pytest.fixture
def store(tmp_path):
    with RunStore.create(tmp_path / "run", {"seed": 1}, {"seed": "default"}) as opened:
        yield opened


def with_logprobs(logprobs: list[float]) -> StoredSample:
    sample = make_sample(0, 0)
    span = Span(Author.MODEL, tuple(range(len(logprobs))), tuple(logprobs), trainable=True)
    return msgspec.structs.replace(
        sample, trajectory=msgspec.structs.replace(sample.trajectory, spans=(span,))
    )


def test_a_step_comes_back_equal_and_in_order(store):
    samples = make_step(3)
    store.append_rollouts(3, samples)
    assert store.rollouts(3) == samples
    assert store.rollouts(2) is None
    assert [s.index for s in store.samples(split="dropped")] == [0]
    assert store.steps() == [3]
    assert store.last_step() == 3


def test_an_empty_step_is_a_stored_step(store):
    assert store.last_step() is None
    store.append_rollouts(0, [])
    assert store.rollouts(0) == []


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_float32_log_probs_keep_every_bit(logprobs):
    row = encode([with_logprobs(logprobs)]).samples[0]
    back = decode(row).trajectory.logprobs
    assert struct.pack(f"{len(back)}f", *back) == struct.pack(f"{len(logprobs)}f", *logprobs)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_float64_log_probs_keep_every_bit(logprobs):
    back = decode(encode([with_logprobs(logprobs)]).samples[0]).trajectory.logprobs
    assert [x.hex() for x in back] == [x.hex() for x in logprobs]


spans = st.builds(
    lambda author, ids, sampled: Span(
        author, tuple(ids), tuple(-i / 7 for i in ids) if sampled else (), trainable=sampled
    ),
    st.sampled_from(Author),
    st.lists(st.integers(0, 50_000), max_size=4),
    st.booleans(),
)


@given(
    prompt=st.lists(spans, max_size=3),
    answers=st.lists(st.lists(spans, max_size=3), min_size=1, max_size=4),
)
def test_rollouts_that_share_spans_are_stored_as_if_each_were_alone(prompt, answers):
    samples = []
    for index, answer in enumerate(answers):
        sample = make_sample(0, index)
        trajectory = msgspec.structs.replace(sample.trajectory, spans=(*prompt, *answer))
        samples.append(msgspec.structs.replace(sample, trajectory=trajectory))
    together = encode(samples).samples
    assert together == [encode([sample]).samples[0] for sample in samples]
    for row, sample in zip(together, samples, strict=True):
        trajectory = sample.trajectory
        cell = dict(zip(COLUMNS, row, strict=True))
        assert decode(row).trajectory == trajectory
        assert json.loads(cell["token_ids"]) == list(trajectory.token_ids)
        assert len(json.loads(cell["logprobs"])) == len(trajectory.token_ids)
        mask = json.loads(cell["loss_mask"])
        assert mask == list(trajectory.loss_mask)
        assert sum(mask) == trajectory.trained_tokens == len(trajectory.logprobs)
        model = [s for s in trajectory.spans if s.author is Author.MODEL]
        assert cell["response_tokens"] == sum(len(s.token_ids) for s in model)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(
    reward=st.floats(allow_nan=False, allow_infinity=False),
    advantage=st.floats(allow_nan=False, allow_infinity=False),
    text=st.text(),
    step=st.integers(0, 2**40),
)
def test_any_sample_comes_back_equal_from_the_file(store, reward, advantage, text, step):
    step += (store.last_step() or 0) + 1
    sample = make_sample(step, 0)
    trajectory = msgspec.structs.replace(sample.trajectory, text=text, info={"note": text})
    sample = msgspec.structs.replace(
        sample, trajectory=trajectory, reward=make_reward(reward), advantage=advantage
    )
    store.append_rollouts(step, [sample])
    assert store.rollouts(step) == [sample]


def test_spans_keep_author_training_and_log_probs_that_are_not_trained(store):
    spans = (
        Span(Author.PROMPT, (1, 2, 3)), Span(Author.MODEL, (4, 5), (-0.5, -1.5)),
        Span(Author.TOOL, ()), Span(Author.MODEL, (6,), (-0.25,), trainable=True),
    )  # fmt: skip
    sample = make_sample(0, 0)
    sample = msgspec.structs.replace(
        sample, trajectory=msgspec.structs.replace(sample.trajectory, spans=spans)
    )
    store.append_rollouts(0, [sample])
    assert store.sample("0/train/0").trajectory.spans == spans
    with sqlite3.connect(store.folder / "run.db") as plain:
        row = plain.execute(
            "SELECT token_ids, loss_mask, logprobs, prompt_tokens, response_tokens FROM samples"
        ).fetchone()
    assert [json.loads(cell) for cell in row[:3]] == [
        [1, 2, 3, 4, 5, 6],
        [0, 0, 0, 0, 0, 1],
        [None, None, None, -0.5, -1.5, -0.25],
    ]
    assert row[3:] == (3, 3)


def test_reward_parts_and_evidence_are_plain_sql(store):
    store.append_rollouts(0, make_step(0, count=4))
    with sqlite3.connect(store.folder / "run.db") as plain:
        names = plain.execute(
            "SELECT name, count(value), count(*) FROM reward_parts GROUP BY name ORDER BY name"
        ).fetchall()
        timeouts = plain.execute(
            "SELECT count(*) FROM samples JOIN reward_parts ON sample_id = id "
            "WHERE name = 'total/judge' AND reward_parts.status = 'timeout' AND step = 0"
        ).fetchone()
        seen = plain.execute("SELECT DISTINCT part, source, visibility FROM evidence").fetchall()
    assert names == [("total", 4, 4), ("total/correct", 4, 4), ("total/judge", 0, 4)]
    assert timeouts == (4,)
    assert seen == [("total/correct", "math_verify", "visible")]


def test_parts_with_the_same_name_stay_apart():
    inner = Reward("a", 1.0, parts=(Reward("b", 2.0),))
    tree = Reward("total", 0.5, parts=(inner, Reward("a/b", 3.0), Reward("a", 4.0)))
    values = {name: node.value for name, node in flatten(tree).items()}
    assert values == {
        "total": 0.5, "total/a": 1.0, "total/a/b": 2.0, "total/a/b#2": 3.0, "total/a#2": 4.0,
    }  # fmt: skip


def test_evidence_keeps_its_visibility_and_error(store):
    seen = Evidence("tests", "2 of 3", Visibility.ORACLE, 0.25, "third timed out")
    reward = Reward.failed("judge", Status.REFUSED, "no", evidence=(seen,))
    sample = msgspec.structs.replace(make_sample(0, 0), reward=reward, advantage=None)
    store.append_rollouts(0, [sample])
    assert store.sample("0/train/0").reward == reward
    with sqlite3.connect(store.folder / "run.db") as plain:
        row = plain.execute("SELECT part, observation, visibility, error FROM evidence").fetchone()
    assert row == ("judge", "2 of 3", "oracle", "third timed out")


def test_metrics_are_curves_and_nan_is_no_value(store):
    store.append_metrics(1, {"loss": 0.1 + 0.2, "kl": None})
    store.append_metrics(0, {"loss": math.nan, "ratio": math.inf})
    assert store.metrics() == {
        "kl": [(1, None)],
        "loss": [(0, None), (1, 0.1 + 0.2)],
        "ratio": [(0, math.inf)],
    }
    assert store.metrics("kl") == {"kl": [(1, None)]}
    assert store.metrics("absent") == {}


def test_evaluations_events_and_summary(store):
    held_out = [make_sample(0, i, split="eval:held_out") for i in range(3)]
    store.append_evaluation(0, "held_out", held_out, {"score": [0.5, 0.1, 0.9]})
    store.append_event("guard", "loss is nan", {"tensor": "loss"}, step=4)
    store.append_rollouts(0, make_step(0, count=5))
    store.append_metrics(0, {"loss/total": 1.0})
    assert [s.index for s in store.samples(split="eval:held_out")] == [0, 1, 2]
    assert store.rollouts(0) == make_step(0, count=5)
    evaluation = store.evaluations("held_out")[0]
    assert (evaluation.step, evaluation.samples) == (0, 3)
    assert evaluation.summary == {"score": [0.5, 0.1, 0.9]}
    assert store.evaluations("other") == []
    assert [(e.kind, e.step, e.data) for e in store.events()] == [("guard", 4, {"tensor": "loss"})]
    assert store.summary().status is RunStatus.RUNNING
    store.finish("finished", {"accuracy": 0.75})
    summary = store.summary()
    assert summary.status is RunStatus.FINISHED
    assert summary.samples == {"dropped": 1, "eval:held_out": 3, "train": 4}
    assert summary.statuses == {"ok": 8}
    assert (summary.steps, summary.sessions, summary.result) == (1, 1, {"accuracy": 0.75})


def test_a_sample_is_found_by_id_by_beginning_and_by_trajectory(store):
    store.append_rollouts(12, make_step(12))
    assert store.sample("12/train/3").trajectory.id == "12.0.3"
    assert store.sample("12/d").split == "dropped"
    assert store.sample("12.1.0").id == "12/train/4"
    with pytest.raises(UserError, match=r"means several .* train-13-1-1, train-13-1-2"):
        store.sample("12/t")
    with pytest.raises(UserError, match="has no sample '13'"):
        store.sample("13")
    with pytest.raises(UserError, match="has no sample ''"):
        store.sample("")


def test_a_sample_has_one_name_for_people(store):
    store.append_rollouts(0, make_step(0))
    store.append_rollouts(2, make_step(2))
    for step in (0, 2):
        store.append_evaluation(step, "held_out", _marked(step, "eval:held_out"), {})
        store.append_evaluation(step, "dropped", _marked(step, "eval:dropped"), {})
    every = list(store.samples())
    names = store.names(every)
    assert len(set(names)) == len(names)
    assert [store.sample(name).id for name in names] == [sample.id for sample in every]
    by_id = dict(zip([sample.id for sample in every], names, strict=True))
    assert by_id["0/train/0"] == "train-1-1-1"
    assert by_id["2/train/5"] == "train-3-2-2"
    assert by_id["0/eval:held_out/1"] == "held_out-start-2-1"
    assert by_id["2/eval:held_out/1"] == "held_out-2-2-1"
    assert by_id["2/eval:dropped/0"] == "eval:dropped-2-1-1"
    assert store.sample("3-2-2").id == "2/train/5"
    for none in ("train-2-1-1", "train-0-1-1", "train-start-1-1", "train-1-1-0", "nothing-1-1-1"):
        with pytest.raises(UserError, match=f"no sample '{none}'; expected a name such as train-3"):
            store.sample(none)


def _marked(step: int, split: str) -> list[StoredSample]:
    """Two answers of an evaluation, each to its own prompt."""
    found = [make_sample(step, index, split=split) for index in range(2)]
    return [
        msgspec.structs.replace(
            sample, trajectory=msgspec.structs.replace(sample.trajectory, group=f"eval.{step}.{i}")
        )
        for i, sample in enumerate(found)
    ]


def test_samples_are_filtered_by_what_is_asked(store):
    for step in range(3):
        store.append_rollouts(step, make_step(step))
    assert {s.step for s in store.samples(step=1)} == {1}
    assert len(list(store.samples(task_id="sum-0", split="train"))) == 12
    assert [s.index for s in store.samples(group="2.1")] == [4, 5, 6]
    assert list(store.samples(status="timeout")) == []
    assert [s.id for s in store.samples(limit=2)] == ["0/train/0", "0/train/1"]


def test_threads_may_share_one_store(store):
    def work(first: int) -> None:
        for step in range(first, first + 5):
            store.append_rollouts(step, make_step(step, count=2))
            store.append_metrics(step, {"loss": float(step)})

    threads = [threading.Thread(target=work, args=(k * 5,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.steps() == list(range(20))
    assert len(store.metrics("loss")["loss"]) == 20


def test_what_json_cannot_hold_is_refused_by_name(store):
    broken = with_logprobs([-0.5, math.nan])
    with pytest.raises(StoreError, match=r"sample 0\.0\.0 .*log-probs of a span\[1\] is nan"):
        store.append_rollouts(0, [broken])
    assert store.rollouts(0) is None
    store.append_rollouts(0, make_step(0))
    assert store.rollouts(0) == make_step(0)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"scores": [1.0, math.nan]}, r"\['x'\]\['scores'\]\[1\] is nan; expected a finite number"),
        ({"by_turn": {1: "a"}}, r"\['x'\]\['by_turn'\] is of type dict; expected"),
        (b"raw", r"\['x'\] is of type bytes; expected text"),
    ],
)
def test_what_json_would_change_in_silence_is_refused_by_key(value, problem):
    sample = make_sample(0, 0)
    trajectory = msgspec.structs.replace(sample.trajectory, info={"x": value})
    task = msgspec.structs.replace(sample.task, fields={"x": value})
    with pytest.raises(StoreError, match=rf"sample 0\.0\.0 \(step 1, train\) .*: info{problem}"):
        encode([msgspec.structs.replace(sample, trajectory=trajectory)])
    with pytest.raises(StoreError, match=rf"sample 0\.0\.0 .*: task\.fields{problem}") as caught:
        encode([msgspec.structs.replace(sample, task=task)])
    assert "\n" not in str(caught.value)


def test_tuples_come_back_as_lists():
    sample = make_sample(0, 0)
    trajectory = msgspec.structs.replace(sample.trajectory, info={"x": (1, (True, None))})
    row = encode([msgspec.structs.replace(sample, trajectory=trajectory)]).samples[0]
    assert decode(row).trajectory.info == {"x": [1, [True, None]]}


def test_half_a_surrogate_pair_is_replaced_and_its_tokens_are_kept(store):
    sample = make_sample(0, 0)
    seen = Evidence("quote", "read \udc00")
    sample = msgspec.structs.replace(
        sample,
        trajectory=msgspec.structs.replace(
            sample.trajectory, text="é \ud83d!", info={"\ud83d": ["\udfff"]}
        ),
        reward=Reward("total", 1.0, evidence=(seen,), reason="\ud83d"),
    )
    store.append_rollouts(0, [sample])
    store.append_rollouts(0, [sample])
    back = store.sample("0/train/0")
    assert back.trajectory.text == "é \ufffd!"
    assert back.trajectory.info == {"\ufffd": ["\ufffd"]}
    assert back.trajectory.spans == sample.trajectory.spans
    assert (back.reward.reason, back.reward.evidence[0].observation) == ("\ufffd", "read \ufffd")


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        ("reward_tree", '{"name": "total", "value": null}'), ("finish", "later"),
        ("logprobs", "[0.5]"),
    ],
)  # fmt: skip
def test_a_damaged_sample_is_one_line_with_its_id(column, cell):
    row = list(encode([make_sample(0, 2)]).samples[0])
    row[COLUMNS.index(column)] = cell
    with pytest.raises(StoreError, match=r"^sample 0/train/2 is damaged and cannot be read: ") as e:
        decode(tuple(row))
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("value", [True, "1", [1.0]])
def test_a_reward_is_a_number_and_not_a_truth_value(value):
    with pytest.raises(ValueError, match=r"reward 'x' is .* of type .*; expected a finite float"):
        Reward("x", value)  # type: ignore[arg-type]


def test_a_whole_number_is_a_reward_as_long_as_it_fits_a_float():
    assert Reward("x", 1).value == 1.0
    with pytest.raises(ValueError, match="expected a finite float"):
        Reward("x", 10**400)
