"""The benchmark of images runs through and compares what it says it compares."""

import pytest

pytest.importorskip("PIL", reason="images need pillow")


def test_it_runs_and_both_give_the_same_answers(tmp_path, monkeypatch):
    import images

    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path))
    words = ["--images", "5", "--batch", "2", "--tokens", "3", "--side", "48", "--repeats", "1"]
    lines = images.main(words)
    assert [line.split()[0] for line in lines[2:5]] == ["burnish", "transformers", "training"]
    assert lines[-1] == "equal greedy answers: 5 of 5"
