"""Published formats become items; what is not the format is named in one line."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from bench_cases import data

from burnish.bench.loaders import load
from burnish.bench.loaders.labelled import load_healthbench_marks, rubric_score
from burnish.errors import UserError


def written(path: Path, *rows: dict) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_judgebench_places_the_right_answer_by_the_id_alone():
    items = load("judgebench", data("judgebench", "test.parquet"))
    assert len(items) == 425
    firsts = sum(item.best == (0,) for item in items)
    assert 170 < firsts < 255  # a fair coin: 212 +- 4 sd
    again = load("judgebench", data("judgebench", "test.parquet"))
    assert [i.best for i in again] == [i.best for i in items]
    assert all(item.hidden["reference"] for item in items)


def test_no_loader_shows_a_judge_the_label():
    files = {
        "judgebench": ("judgebench", "test.parquet"), "llmbar": ("llmbar", "test.parquet"),
        "pandalm": ("pandalm", "test.parquet"), "rmbench": ("rmbench", "chat.parquet"),
    }  # fmt: skip
    for name, words in files.items():
        for item in load(name, data(*words))[:50]:
            task = item.task()
            assert not item.hidden.keys() & task.fields.keys()
            assert task.source == ""
            assert all("chosen" not in r.id and "rejected" not in r.id for r in item.responses)
            assert item.task(oracle=True).for_judge().fields == item.shown


def test_judgebench_in_its_own_form(tmp_path):
    row = {
        "pair_id": "p1", "source": "mmlu-pro-law", "question": "Q", "response_A": "one",
        "response_B": "two", "label": "B>A", "response_model": "m",
    }  # fmt: skip
    (item,) = load("judgebench", written(tmp_path / "a.jsonl", row))
    assert item.best == (1,)
    assert item.subset == "mmlu-pro"
    assert [r.text for r in item.responses] == ["one", "two"]
    with pytest.raises(UserError, match=r"a\.jsonl:1: 'label' is 'A=B'; expected A>B, B>A"):
        load("judgebench", written(tmp_path / "a.jsonl", {**row, "label": "A=B"}))


def test_llmbar_in_folders_takes_its_subset_from_them(tmp_path):
    row = {"input": "i", "output_1": "x", "output_2": "y", "label": 2}
    for name in ("Natural", "Adversarial/Manual"):
        file = tmp_path / "LLMBar" / name / "dataset.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps([row]))
    items = load("llmbar", tmp_path / "LLMBar")
    assert sorted(item.subset for item in items) == ["Adversarial/Manual", "Natural"]
    assert {item.best for item in items} == {(1,)}


RMBENCH = {"id": 1, "prompt": "p", "chosen": ["a", "b", "c"], "rejected": ["x", "y", "z"]}


def test_a_folder_is_read_as_far_as_it_is_the_benchmark(tmp_path, caplog):
    written(tmp_path / "chat_filtered.jsonl", RMBENCH)
    written(tmp_path / "code_filtered.jsonl", RMBENCH)
    written(tmp_path / "refusals.jsonl", {"id": 1, "prompt": "p", "refusals": ["no"]})
    (tmp_path / "notes.json").write_text("{")
    items = load("rmbench", tmp_path)
    assert Counter(item.subset for item in items) == {"chat": 9, "code": 9}
    told = sorted(record.getMessage() for record in caplog.records)
    assert len(told) == 2
    assert "notes.json" in told[0]
    assert "refusals.jsonl:1: no column chosen, rejected, so this is not RM-Bench" in told[1]
    with pytest.raises(UserError, match=r"no column chosen"):
        load("rmbench", tmp_path / "refusals.jsonl")
    (tmp_path / "other").mkdir()
    written(tmp_path / "other" / "refusals.jsonl", {"id": 1, "prompt": "p"})
    with pytest.raises(UserError, match=r"no column chosen"):
        load("rmbench", tmp_path / "other")


def test_what_stands_in_two_files_of_a_folder_is_read_once(tmp_path, caplog):
    written(tmp_path / "chat_filtered.jsonl", RMBENCH)
    written(tmp_path / "total_dataset.jsonl", {**RMBENCH, "domain": "chat"})
    assert len(load("rmbench", tmp_path)) == 9
    assert "9 items that stand twice" in caplog.text
    written(tmp_path / "total_dataset.jsonl", {**RMBENCH, "domain": "chat", "prompt": "q"})
    with pytest.raises(UserError, match="two items have the id 'chat/1/00'"):
        load("rmbench", tmp_path)


def test_pandalm_takes_the_majority_of_three_people():
    items = load("pandalm", data("pandalm", "test.parquet"))
    assert Counter(item.subset for item in items) == {"one is better": 646, "equal": 68}
    assert all(len(item.people) == 3 for item in items)


def test_pandalm_without_a_majority_has_no_label(tmp_path):
    row = {"idx": 1, "instruction": "i", "input": "more", "response1": "x", "response2": "y"}
    marks = {"annotator1": 0, "annotator2": 1, "annotator3": 2}
    (item,) = load("pandalm", written(tmp_path / "p.jsonl", {**row, **marks}))
    assert item.best is None
    assert item.people == ((0, 1), (0,), (1,))
    assert item.messages[0].content == "i\n\nmore"


def test_rmbench_makes_nine_pairs_of_a_row():
    items = load("rmbench", data("rmbench", "chat.parquet"))
    assert len(items) == 9 * 90
    assert len({item.group for item in items}) == 90
    one = [item for item in items if item.group == items[0].group]
    styles = {(item.info["right_style"], item.info["wrong_style"]) for item in one}
    assert len(styles) == 9


def test_rewardbench2_keeps_all_right_answers_of_a_tie(tmp_path):
    row = {
        "id": "tied:3", "prompt": "a colour", "chosen": ["red", "blue"], "rejected": ["dog", "cat"],
        "models": ["m1", "m2", "m3", "m4"], "subset": "Ties",
    }  # fmt: skip
    (item,) = load("rewardbench2", written(tmp_path / "r.jsonl", row))
    assert item.group == "3"
    assert item.best is not None
    assert {item.responses[k].text for k in item.best} == {"red", "blue"}
    by_text = dict(zip((r.text for r in item.responses), item.authors, strict=True))
    assert by_text == {"red": "m1", "blue": "m2", "dog": "m3", "cat": "m4"}


def test_ppe_human_and_correctness(tmp_path):
    human = {
        "question_id": "q", "prompt": "p", "response_1": "x", "response_2": "y",
        "winner": "model_b", "model_a": "m", "model_b": "n", "language": "Chinese",
    }  # fmt: skip
    (item,) = load("ppe", written(tmp_path / "h.jsonl", human))
    assert (item.best, item.subset, item.authors) == ((1,), "Chinese", ("m", "n"))
    (tie,) = load("ppe", written(tmp_path / "h.jsonl", {**human, "winner": "tie (bothbad)"}))
    assert tie.best == (0, 1)
    correct = {
        "question_id": "q", "prompt": "p", "response_1": "wrong", "response_2": "good",
        "response_3": "bad", "scores": [False, True, False],
        "sampled_conflict_pairs": [[0, 1], [1, 2], [0, 2]],
    }  # fmt: skip
    items = load("ppe", written(tmp_path / "gpqa" / "c.jsonl", correct))
    assert len(items) == 2  # the third pair has no right answer
    for one in items:
        assert one.best is not None
        assert one.responses[one.best[0]].text == "good"
        assert one.subset == "gpqa"
    broken = {**correct, "sampled_conflict_pairs": [[0, 9]]}
    with pytest.raises(UserError, match="no row of PPE: IndexError"):
        load("ppe", written(tmp_path / "c.jsonl", broken))


def test_healthbench_scores_are_those_on_record():
    marked = load_healthbench_marks(data("healthbench_sample", "test.parquet"))
    assert len(marked) == 70
    for one in marked:
        score = rubric_score([d.points for d in one.demands], one.met)
        assert score == pytest.approx(one.recorded, abs=1e-9)


def test_rubric_score_by_hand():
    # 5 + (-4) earned of 5 + 3 possible; nothing positive to earn is no score
    assert rubric_score([5, 3, -4], [True, False, True]) == pytest.approx(1 / 8)
    assert rubric_score([5, 3, -4], [True, True, False]) == 1
    assert rubric_score([-4], [False]) is None


def test_ifeval_prompts_carry_their_instructions():
    items = load("ifeval", data("ifeval", "test.parquet"))
    assert len(items) == 400
    assert all(len(i.shown["instruction_id_list"]) == len(i.shown["kwargs"]) for i in items)
