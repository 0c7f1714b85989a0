"""Pairs over pictures: three published formats to the letter, their scores, and rubrics with pictures."""

import io
import json

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from burnish.bench.items import Judged, preference_rows
from burnish.bench.judge_results import live_result, picture_figures
from burnish.bench.judging import judge_items
from burnish.bench.loaders import load
from burnish.bench.proxy_transfer import RubricCase, rubric_transfer
from burnish.errors import UserError
from burnish.lm import ScriptedLM
from burnish.records import ImagePart, Message, Response, Status, Task, TextPart
from burnish.rewards.function import from_function
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.proxy_grm import (
    mm_rlhf,
    multimodal_rewardbench,
    vl_category,
    vl_rewardbench,
)
from burnish.rewards.judges.proxy_rubric import (
    FunctionProxy,
    ModelProxy,
    ProxyVerifiedRubric,
    TwoResponses,
)
from burnish.store.blobs import shared_blobs

Image = pytest.importorskip("PIL.Image", reason="pillow draws the pictures")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))


def picture(colour="red"):
    out = io.BytesIO()
    Image.new("RGB", (8, 8), colour).save(out, "PNG")
    return out.getvalue()


def vl_row(id="RLAIF-V-14", ranking=(0, 1), place="images/rlaif-v/RLAIF-V-14.jpg"):
    """A row as the repository's `data/data.jsonl` has it."""
    return {
        "id": id, "image_path": place, "query": "How many flags can be seen?",
        "response": ["There are 27.", "There are many."], "human_ranking": list(ranking),
        "models": ["OmniLMM-12B", "OmniLMM-12B"], "judge": "placeholder_judge",
        "rationale": "placeholder_rationale", "query_source": "VQAv2",
        "meta": {"original_dataset": "VQAv2"}, "human_error_analysis": ["counting"],
    }  # fmt: skip


def write_lines(file, rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def put(folder, place, data=None):
    file = folder / place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data or picture())


def test_vl_rewardbench_as_its_repository_publishes_it(tmp_path):
    rows = [vl_row(), vl_row("LRV-7", (1, 0), "images/vlfeedback/LRV-7.jpg"), vl_row("povid", (1, 0), "images/povid/1.jpg")]  # fmt: skip
    for row in rows:
        put(tmp_path, row["image_path"])
    items = load("vl_rewardbench", write_lines(tmp_path / "data.jsonl", rows))
    assert [item.best for item in items] == [(0,), (1,), (1,)]
    assert [item.subset for item in items] == ["hallucination", "general", "hallucination"]
    shown, text = items[0].messages[0].content
    assert isinstance(shown, ImagePart)
    assert shared_blobs().bytes_of(shown.sha256) == picture()
    assert text.text == "How many flags can be seen?"
    assert items[0].task().fields == {}


def test_vl_rewardbench_as_parquet_with_the_picture_in_it(tmp_path):
    row = vl_row("mathverse_12", (1, 0)) | {"image": {"bytes": picture(), "path": None}}
    del row["image_path"]
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "test-00000-of-00001.parquet")
    (item,) = load("vl_rewardbench", tmp_path / "test-00000-of-00001.parquet")
    assert (item.subset, item.best) == ("reasoning", (1,))


def test_multimodal_rewardbench_as_its_repository_publishes_it(tmp_path):
    rows = [
        {"ID": "pairs_3", "Text": "Who is it? <image 1>", "Image": "images/a.png", "Output1": "A nurse.",
         "Output2": "I cannot tell.", "Better": "Output2", "Category": "safety"},
        {"ID": "math-vista_9", "Text": "x?", "Image": "images/a.png", "Output1": "1", "Output2": "2",
         "Better": "Output1", "Category": "reasoning"},
    ]  # fmt: skip
    put(tmp_path, "images/a.png")
    (tmp_path / "all_data.json").write_text(json.dumps(rows))
    items = load("multimodal_rewardbench", tmp_path / "all_data.json")
    assert [(item.subset, item.best) for item in items] == [
        ("safety/bias", (1,)),
        ("reasoning/math", (0,)),
    ]
    assert items[0].messages[0].content[1].text == "Who is it?"


def test_mm_rlhf_counts_pairs_of_an_id_together_and_names_what_it_cannot_show(tmp_path, caplog):
    base = {"prompt": "<image>\nWhat?", "chosen": "right", "rejected": "wrong"}
    rows = [
        {"id": 7, "image": "images/mcq/1.png", **base}, {"id": 7, "image": "images/mcq/1.png", **base},
        {"id": 8, "image": "images/long/2.png", **base}, {"id": 9, "video": "video/3.mp4", **base},
    ]  # fmt: skip
    put(tmp_path, "images/mcq/1.png")
    put(tmp_path, "images/long/2.png", picture("blue"))
    items = load("mm_rlhf", write_lines(tmp_path / "bench.jsonl", rows))
    assert [(item.group, item.subset) for item in items] == [
        ("7", "mcq"),
        ("7", "mcq"),
        ("8", "long"),
    ]
    assert "1 rows" in caplog.text
    scorer = from_function(lambda text: float(text == "right"))
    judged = anyio.run(lambda: judge_items(scorer, items, judge="j", bench="mm_rlhf"))
    result = live_result("mm_rlhf", "j", items, judged)
    assert result.published == {"acc": 1.0, "acc+": 1.0}
    spoilt = [
        Judged("x", "j", values=(0.0, 1.0), choice=(1,), best=(0,), info=judged[0].info),
        *judged[1:],
    ]
    assert picture_figures("mm_rlhf", spoilt) == {"acc": pytest.approx(2 / 3), "acc+": 0.5}


def test_mathvision_pairs_a_right_and_a_wrong_response(tmp_path):
    said = [("a", True), ("b", False), ("c", False), ("", True)]
    row = {
        "id": "525", "question": "Which digit?\n<image1>", "options": ["5", "6"], "answer": "5",
        "subject": "algebra", "image_path": "images/525.jpg", "image_jpg": picture(),
        "responses": [{"system": "s", "response": r, "model_answer": "5", "correct": c} for r, c in said],
    }  # fmt: skip
    none = {**row, "id": "526", "responses": row["responses"][:1]}
    pq.write_table(pa.Table.from_pylist([row, none]), tmp_path / "test.parquet")
    (item,) = load("mathvision", tmp_path / "test.parquet")
    assert item.responses[item.best[0]].text == "a"
    assert item.messages[0].content[1].text == "Which digit?\n\n(A) 5\n(B) 6"
    assert item.hidden == {"reference": "5"}
    (pair,) = preference_rows([item])
    assert pair["chosen"] == "a"
    pq.write_table(pa.Table.from_pylist([{**row, "answer": None}]), tmp_path / "open.parquet")
    assert load("mathvision", tmp_path / "open.parquet")[0].hidden == {}
    assert pair["prompt"][0]["content"][0]["type"] == "image"
    pq.write_table(pa.Table.from_pylist([none]), tmp_path / "none.parquet")
    with pytest.raises(UserError, match="no 'responses' with a 'correct' one"):
        load("mathvision", tmp_path / "none.parquet")


def test_published_scores_of_the_three():
    rows = [
        {"id": "mmmu_1", "rewards": [1, 0], "reverse": False},
        {"id": "RLAIF-V-1", "rewards": [1, 0], "reverse": True},
    ]
    assert vl_rewardbench(rows)["general"] == 0.0
    assert vl_rewardbench(rows, any_case=True)["hallucination"] == 0.0
    assert vl_category("MathVerse_3") == "reasoning"
    found = multimodal_rewardbench(
        [
            {"id": "pairs1", "Category": "Safety", "rewards": [1, 0]},
            {"id": "x", "Category": "safety", "rewards": [0, 1], "reverse": True},
            {"id": "y", "Category": "safety", "rewards": [0, 0]},
            {"id": "m", "Category": "VQA", "rewards": [1, 0]},
        ]
    )
    assert found["groups"] == {"safety/bias": 1.0, "safety/toxicity": 0.5, "vqa": 1.0}
    assert found["micro"] == 0.75
    assert found["macro"] == pytest.approx(2.5 / 3)
    assert multimodal_rewardbench([]) == {"groups": {}, "micro": None, "macro": None}
    assert mm_rlhf([])["acc"] is None
    with pytest.raises(ValueError, match="rewards"):
        multimodal_rewardbench([{"id": "m", "rewards": [float("nan"), 0]}])


# Rubrics and pictures.

RUBRIC = "<rubric>colour 100%</rubric>"


def looks(messages, index):
    """A judge that sees: the response that names the picture's colour, where the rubric says so."""
    (message,) = messages
    text = message.content[0]
    (part,) = message.media
    colour = "red" if shared_blobs().bytes_of(part.sha256) == picture("red") else "blue"
    if "colour" not in text.text.split("ubric")[-1] and "colour 100%" not in text.text:
        return "<answer>1</answer>"
    first = text.text.find("It is red") < text.text.find("It is blue")
    return f"<answer>{1 if (colour == 'red') == first else 2}</answer>"


def cases():
    parts = {colour: shared_blobs().add(picture(colour)) for colour in ("red", "blue")}
    return [
        RubricCase(
            "Which?", "It is red.", "It is blue.", 1 if colour == "red" else 2, rubric,
            (parts[colour],),
        )
        for colour in ("red", "blue")
        for rubric in (RUBRIC, "<rubric>length 100%</rubric>")
    ]  # fmt: skip


def test_a_rubric_transfers_to_a_judge_that_sees_the_picture():
    sees = ModelProxy(JudgeModel(ScriptedLM(looks), repairs=0))
    only = [case for case in cases() if case.rubric == RUBRIC]
    (row,) = anyio.run(lambda: rubric_transfer(only, [sees]))
    assert row.with_rubric.value == 1.0
    assert row.without.value == 0.5
    (mixed,) = anyio.run(lambda: rubric_transfer(cases(), [sees]))
    assert mixed.with_rubric.value == 0.75


def test_the_instructions_come_before_the_picture_and_a_picture_is_part_of_the_question():
    lm = ScriptedLM(lambda messages, index: "<answer>1</answer>")
    proxy = ModelProxy(JudgeModel(lm, repairs=0))
    part = shared_blobs().add(picture())
    anyio.run(proxy.choose, TwoResponses("q", "a", "b", (part,)), RUBRIC)
    (message,) = lm.calls[0].prompt
    assert isinstance(message.content[0], TextPart)
    assert message.media == (part,)
    anyio.run(proxy.choose, TwoResponses("q", "a", "b"), RUBRIC)
    assert isinstance(lm.calls[1].prompt[0].content, str)


def test_the_reward_shows_the_prompts_picture_to_its_proxy_and_remembers_by_it():
    seen = []

    def follow(question, first, second, rubric, pictures=()):
        seen.append([part.sha256 for part in pictures])
        return 1 if first == "right" else 2

    scorer = ProxyVerifiedRubric(proxy=FunctionProxy(follow))
    fields = {"question": "q", "response_1": "right", "response_2": "wrong", "label": 1}
    reply = Response("r", f"{RUBRIC}<eval>x</eval><answer>1</answer>")
    parts = [shared_blobs().add(picture(colour)) for colour in ("red", "blue")]
    for part in [*parts, parts[0]]:
        task = Task("t", (Message("user", (part, TextPart("Judge."))),), fields)
        (reward,) = anyio.run(scorer.score, task, [reply])
        assert (reward.value, reward.status) == (2.5, Status.OK)
    assert seen == [[part.sha256] for part in parts]
