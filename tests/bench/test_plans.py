"""ATP-Bench's data, its figures over many answers, and the command."""

import json
from dataclasses import replace
from functools import partial
from random import Random

import anyio
import pytest
from recipes.atp.manuals import make

from burnish.bench.items import responses_of
from burnish.bench.judging import judge_items
from burnish.bench.loaders import load
from burnish.bench.loaders.plans import SHIPPED, plan_record, plan_score, strip_images, with_oracle
from burnish.rewards.judges.atp_bench import atp_scorer
from burnish.seeds import derive

DOCUMENT = """# Kettle

Fill it with water.

![the kettle](kettle.png)

Wait. ![](clock.png "a clock")

```
![no image](x.png)
```

Pour.
"""


def scored(items, texts):
    given = [
        replace(item, responses=responses_of(item.id, [text]))
        for item, text in zip(items, texts, strict=True)
    ]
    ask = partial(judge_items, atp_scorer(), given, judge="needs", bench="atp", oracle=True)
    return given, anyio.run(ask)


def test_the_set_that_ships_is_what_its_generator_writes():
    rows = [json.loads(line) for line in SHIPPED.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 40
    for index, row in enumerate(rows):
        drawn = make(Random(derive("atp manuals", index)), steps=3 + index % 3)
        assert (row["query"], row["needs"], row["gt"]) == (
            drawn["prompt"],
            drawn["needs"],
            drawn["answer"],
        )


def test_whole_plans_are_perfect_and_silence_misses_every_need():
    items = load("atp", SHIPPED)
    _, judged = scored(items, [item.hidden["gt"] for item in items])
    found = plan_score(judged)
    assert (found.f1.value, found.validity.value, found.corpus.missed_mean) == (1.0, 1.0, 0.0)
    assert set(found.corpus.per_tool) == {"reference", "search", "diffusion", "code", "edit"}
    _, silent = scored(items, ["nothing" for _ in items])
    needs = sum(len(item.hidden["needs"]) for item in items)
    assert plan_score(silent).corpus.missed_mean == pytest.approx(needs / len(items))
    assert plan_score(silent).corpus.success_rate_macro is None
    json.dumps(plan_record(found))


def test_a_judge_is_held_against_the_needs():
    items = load("atp", SHIPPED)[:4]
    given, judged = scored(items, [item.hidden["gt"] for item in items])
    agreed = anyio.run(with_oracle, judged, given)
    assert agreed.share == 1.0
    assert agreed.items == sum(len(item.hidden["needs"]) for item in items)


def test_markdown_documents_give_their_images_back(tmp_path):
    (tmp_path / "a.md").write_text(DOCUMENT, encoding="utf-8")
    (tmp_path / "b.md").write_text("No image here.", encoding="utf-8")
    (item,) = load("atp", tmp_path)
    assert sorted(item.shown["images"]) == ["", "the kettle"]
    places = {need["intent"]: need["where"] for need in item.hidden["needs"]}
    assert places == {"the kettle": "Fill it with water.", "the picture": "Wait."}
    assert "kettle.png" not in item.messages[0].text
    ids = {need["intent"]: need["args"]["image_id"] for need in item.hidden["needs"]}
    call = '<tool name="reference">{{"image_id": {}}}</tool>'.format
    text = DOCUMENT.replace("![the kettle](kettle.png)", call(ids["the kettle"]))
    text = text.replace('![](clock.png "a clock")', call(ids["the picture"]))
    _, (right,) = scored([item], [text])
    assert right.values == (1.0,)
    swapped = DOCUMENT.replace("![the kettle](kettle.png)", call(ids["the picture"]))
    _, (wrong,) = scored([item], [swapped])
    assert wrong.values == (0.0,)


def test_an_image_before_any_text_has_no_place():
    assert strip_images("![logo](l.png)\n\nText.").places == [-1]


def test_the_benchmarks_own_fields_are_read(tmp_path):
    row = {"trace_id": "7", "query": "How?", "image_query": "q.png", "doc": "Text.", "images": ["a.png"],
           "gt": "An answer.", "response": "Mine."}  # fmt: skip
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    (item,) = load("atp", tmp_path / "rows.jsonl")
    assert item.shown == {"documents": ["Text."], "images": ["q.png", "a.png"]}
    assert item.hidden == {"gt": "An answer."}
    assert [one.text for one in item.responses] == ["Mine."]
