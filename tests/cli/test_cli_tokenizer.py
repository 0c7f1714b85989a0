"""`burnish tokenizer train` and `burnish try pretrain`: text as a model will see it."""

import json


def test_a_tokenizer_is_trained_and_never_overwritten(typed, tmp_path):
    text, out = tmp_path / "text.txt", tmp_path / "tok"
    text.write_text("the cat sat on the mat\n" * 50)
    done = typed("tokenizer", "train", text, "--size", 270, "--out", out, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["size"], found["bytes"]) == (270, 23 * 50)
    assert found["bytes_per_token"] > 1.5
    again = typed("tokenizer", "train", text, "--out", out)
    assert again.code == 2
    assert "tok is there already and not empty; expected a new folder" in again.err


def test_a_text_without_pairs_to_join_is_said(typed, tmp_path):
    (tmp_path / "text.txt").write_text("abc abc")
    done = typed("tokenizer", "train", tmp_path / "text.txt", "--out", tmp_path / "tok")
    assert done.code == 0
    assert "ids instead of 4,096" in done.out


def test_try_shows_the_first_documents_of_a_pretraining(typed, tmp_path):
    (tmp_path / "text.jsonl").write_text('{"text": "first one"}\n{"text": "second"}\n')
    data = f"train.data={tmp_path / 'text.jsonl'}"
    done = typed("try", "pretrain", data, "--prompts", 1)
    assert done.code == 0, done.err
    assert "document 1: 9 bytes, 9 tokens" in done.out
    assert "first one" in done.out
    assert "second" not in done.out
    assert "16 sequences of 256 tokens (4,096); documents in one do not see each other" in done.out
