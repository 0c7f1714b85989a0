"""`burnish bench atp` on the command line."""

import json
from pathlib import Path

from burnish.bench.loaders import load
from burnish.bench.loaders.plans import SHIPPED
from burnish.bench.open_judge import JudgeSettings, default_path, open_judge


def test_plans_of_a_file_against_the_set_that_ships(typed, tmp_path):
    items = load("atp", SHIPPED)
    lines = [json.dumps({"id": item.id, "response": item.hidden["gt"]}) for item in items]
    answers = tmp_path / "answers.jsonl"
    answers.write_text("\n".join(lines))
    record = json.loads(typed("bench", "atp", "--answers", answers, "--json").out)
    assert (record["items"], record["f1"]["value"], record["failed"]) == (40, 1.0, 0)
    shown = typed("bench", "atp", "--answers", answers)
    assert (shown.code, "missed          0.000" in shown.out) == (0, True)


def test_guides_and_documents_have_a_results_file_each(typed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = "Open the lid.\n\n![the lid](lid.png)\n\nDone.\n"
    for name in ("one", "two"):
        folder = tmp_path / name / "docs"
        folder.mkdir(parents=True)
        (folder / "a.md").write_text(page)
    words = ("bench", "atp", "--model", "tiny", "--max-tokens", "4", "--limit", "1", "--json")
    asked = [(), ("--data", tmp_path / "one/docs"), ("--data", tmp_path / "two/docs")]
    files = [json.loads(typed(*words, *more).out)["file"] for more in asked]
    assert len(set(files)) == 3
    assert [Path(file).name.startswith("atp-tiny-docs-") for file in files] == [False, True, True]
    assert [len(Path(file).read_text().splitlines()) for file in files] == [1, 1, 1]
    again = json.loads(typed(*words, *asked[1]).out)
    assert (again["file"], again["spent"]["calls"]) == (files[1], 0)


def test_other_answers_have_another_results_file(tmp_path):
    judge = open_judge(JudgeSettings(with_="direct", model="tiny"))
    first, second = tmp_path / "a" / "answers.jsonl", tmp_path / "b" / "answers.jsonl"
    data = tmp_path / "data.jsonl"
    files = [default_path("ifeval", judge, data, one) for one in (None, first, second, first)]
    assert len(set(files)) == 3
    assert files[1] == files[3]
    assert files[1].name.startswith("ifeval-direct-tiny-data-answers-")
