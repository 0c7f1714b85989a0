"""Studies over pictures: the words kept on file, the arms in their order, and the tables written."""

import json

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lab.atp import citations
from lab.evpv import chartqa
from lab.proxy_grm import pictures

from burnish.rewards.judges.evpv.charts import Page, Word

Image = pytest.importorskip("PIL.Image", reason="pillow draws the pictures")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))


TABLE = "Fruit,Sales\nApples,41\nPears,73\nPlums,58\nFigs,nan\n"


def words(*values):
    labels = [
        Word(name, 100 * n, 300, 100 * n + 40, 312)
        for n, name in enumerate(("Apples", "Pears", "Plums"))
    ]
    numbers = [Word(str(v), 100 * n + 10, 100, 100 * n + 30, 112) for n, v in enumerate(values)]
    return Page([*labels, *numbers], 0)


def chart_files(folder, monkeypatch):
    """Two charts, of which one is misread in one value, and a reader that must be asked once each."""
    import io

    asked = []
    pages = [words(41, 73, 58), words(41, 37, 58)]

    def read(picture):
        asked.append(picture.sha256)
        return pages[len(asked) - 1]

    monkeypatch.setattr(chartqa, "read_words", read)
    for place, split in enumerate(("test", "train")):
        out = io.BytesIO()
        Image.new("RGB", (400, 400), (250, 250, 250 - place)).save(out, "PNG")
        row = {
            "imgname": f"{split}.png", "split": split, "table_csv": TABLE,
            "image_png": out.getvalue(),
        }  # fmt: skip
        (folder / "chartqa").mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist([row]), folder / "chartqa" / f"{split}.parquet")
    return asked


def test_charts_are_read_once_and_a_misread_value_contradicts(tmp_path, monkeypatch):
    asked = chart_files(tmp_path, monkeypatch)
    charts = chartqa.load(tmp_path, tmp_path / "words.jsonl")
    again = chartqa.load(tmp_path, tmp_path / "words.jsonl")
    assert len(asked) == 2
    assert charts == again
    assert charts[0].premises == ["Apples = 41", "Pears = 73", "Plums = 58"]
    told = chartqa.outcomes(charts, 0)
    assert told["recall"] == pytest.approx(5 / 6)
    assert told["precision"] == pytest.approx(5 / 6)


def test_gates_stand_in_their_order_and_the_table_is_written(tmp_path, monkeypatch):
    chart_files(tmp_path, monkeypatch)
    monkeypatch.setattr(chartqa, "QUESTIONS", 40)
    monkeypatch.setattr(chartqa, "RATIOS", (1.0,))
    charts = chartqa.load(tmp_path, tmp_path / "words.jsonl")[:1]
    found = chartqa.run(charts, 0)
    assert found["ungated"][0] < found["gated by OCR"][0] == found["gated by perfect facts"][0]
    assert found["drop 1"] == found["ungated"]
    assert found["flip 1"][0] < found["gated by OCR"][0]
    pytest.importorskip("matplotlib")
    chartqa.report(charts, [found, found], [chartqa.outcomes(charts, s) for s in (0, 1)], tmp_path)
    assert "gated by OCR minus ungated: +" in (tmp_path / "chartqa.md").read_text()


def test_citations_of_claims_with_peoples_labels(tmp_path):
    page = [
        f"Sentence {n} is about the {word} of the town."
        for n, word in enumerate("abcdefghijklmnop")
    ]
    page[9] = "The lighthouse was built in 1871 by Mary Holm."
    row = {"id": "c", "label": "supported", "claim": "The lighthouse was built in 1871 by Mary Holm",
           "evidence": json.dumps(page), "supporting_sentences": json.dumps([[9]])}  # fmt: skip
    rows = [row, {**row, "id": "d", "label": "not_supported", "claim": "Dragons eat 99 sheep.", "supporting_sentences": "[]"}]  # fmt: skip
    for name in ("dev", "test"):
        given = rows if name == "dev" else [{**one, "id": one["id"] + "2"} for one in rows]
        pq.write_table(pa.Table.from_pylist(given), tmp_path / f"{name}.parquet")
    claims = citations.load(tmp_path)
    assert [one.right for one in claims] == [[2], [], [2], []]
    found = anyio.run(citations.measure, claims, 0.4)
    assert set(found["right document: called right"]) == {1.0}
    assert set(found["wrong document: called right"]) == {0.0}
    assert set(found["the document named as missing is a right one"]) == {1.0}
    assert "least 0.4" in citations.report(claims, {0.4: found}, tmp_path)


def test_pairs_over_pictures_need_the_rubric_and_the_picture(tmp_path):
    found = anyio.run(pictures.transfer, 60)
    assert found["the pair's rubric"].value == 1.0
    assert found["another pair's rubric"].value < 0.7
    assert found["the pair's rubric, another picture"].value < 0.5
    pictures.write_transfer(found, 60, tmp_path)
    assert "| no rubric | 0.000" in (tmp_path / "pictures_transfer.md").read_text()
