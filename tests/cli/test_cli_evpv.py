"""`burnish judge --with evpv`: questions, evidence and solutions of a file."""

import json

import pytest
from judge_server import JudgeServer

ROW = {
    "question": "How much do tea and salt cost together?",
    "evidence": [{"type": "table", "csv": "Item,Price\nTea,14\nSalt,9"}],
    "responses": [
        "Tea costs 14. [premise: Price of Tea = 14]\n\nSalt costs 8. [premise: Price of Salt = 8]",
        "Tea costs 14. [premise: Price of Tea = 14]\n\nSalt costs 9. [premise: Price of Salt = 9]",
    ],
}


def test_the_grounded_solution_wins_and_says_why(typed, tmp_path):
    file = tmp_path / "solutions.jsonl"
    file.write_text(json.dumps(ROW) + "\n")
    with JudgeServer(lambda prompt: "1") as server:
        done = typed("judge", file, "--with", "evpv", "--model", server.model, "--json")
    assert done.code == 0, done.err
    assert len(server.prompts) == 3  # the step that both share is asked about once
    assert not any("Item,Price" in prompt for prompt in server.prompts)
    (item,) = json.loads(done.out)["items"]
    wrong, right = item["rewards"]
    assert (round(wrong["value"], 3), right["value"]) == (0.667, 1.0)
    assert wrong["parts"][1]["verdicts"][0]["reason"].startswith("contradicted: Salt Price = 9")


def test_a_file_without_evidence_is_refused_before_anything_is_asked(typed, tmp_path):
    file = tmp_path / "solutions.jsonl"
    file.write_text(json.dumps({"question": "?", "response": "a"}) + "\n")
    done = typed("judge", file, "--with", "evpv", "--model", "tiny")
    assert done.code == 2
    assert "evidence" in done.err


def test_pictures_of_a_column_are_evidence(typed, tmp_path):
    """Paths start at the file's folder; the columns are part of the prompt, not hidden fields."""
    pytest.importorskip("rapidocr_onnxruntime", reason="OCR is not installed")
    image = pytest.importorskip("PIL.Image").new("RGB", (640, 160), "white")
    font = pytest.importorskip("PIL.ImageFont").load_default(40)
    pytest.importorskip("PIL.ImageDraw").Draw(image).text((40, 50), "Sales: 42", "black", font)
    image.save(tmp_path / "sales.png")
    texts = [f"They sold {n}. [premise: Sales = {n}]" for n in (42, 24)]
    row = {"prompt": "What was sold? <image>", "image": "sales.png", "responses": texts}
    file = tmp_path / "solutions.jsonl"
    file.write_text(json.dumps(row) + "\n")
    options = ("--option", "verifier=none", "--option", "pictures=ocr", "--model", "tiny")
    done = typed("judge", file, "--with", "evpv", *options, "--json")
    assert done.code == 0, done.err
    right, wrong = json.loads(done.out)["items"][0]["rewards"]
    assert right["value"] == 1.0
    assert wrong["value"] < right["value"]


def test_evidence_that_cannot_be_read_is_counted_in_what_is_printed(typed, tmp_path):
    text = "They sold 42. [premise: Sales = 42]"
    rows = [
        {"question": "q", "evidence": {"image": "data:image/png;base64,AAAA"}, "response": text},
        {"question": "q", "evidence": "", "response": text},
        {"question": "q", "evidence": "Sales = 42", "response": text},
    ]
    file = tmp_path / "solutions.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("judge", file, "--with", "evpv", "--option", "verifier=none", "--model", "tiny")
    counts = json.loads(typed(*words, "--json").out)["premises"]
    assert counts["reason"].startswith("the evidence could not be read: an image of 3 bytes")
    del counts["reason"]
    assert counts == {
        "responses": 3, "gate_open": 1, "no_facts": 1, "supported": 1, "contradicted": 0,
        "unknown": 1, "unchecked": 1,
    }  # fmt: skip
    done = typed(*words)
    said = " ".join(done.out.split())
    assert "premises 1 supported, 0 contradicted, 1 unknown, 1 unchecked" in said
    assert "the gate is open for 1 of 3 responses: the evidence could not be read" in said
    assert "the evidence of 1 of 3 responses holds no fact" in said
