"""Judge benchmark results: figures, confusion, disagreements, files that are none."""

from __future__ import annotations

import msgspec
import pytest
from viewed_runs import SCRIPT, open_client

from burnish.bench.items import Judged
from burnish.lm.call_log import Call
from burnish.records import Evidence, Message, Reward, Status


def judged(number: int, choice: tuple[int, ...] | None, best: tuple[int, ...]) -> Judged:
    reply = Reward("judge", 0.5, evidence=(Evidence("judge", f"reply {SCRIPT}"),))
    return Judged(
        f"item-{number}", "direct@tiny", "llmbar", choice=choice, best=best, values=(0.5, -0.5),
        status=Status.OK if choice is not None else Status.PARSE_ERROR,
        reason="" if choice is not None else "no verdict", subset="easy" if number < 3 else "hard",
        seconds=0.5, rewards=(reply,),
    )  # fmt: skip


@pytest.fixture
def bench(tmp_path, runs):
    """Two right, one wrong, one tie, one without a verdict; a line that is being written."""
    items = [
        judged(0, (0,), (0,)), judged(1, (1,), (1,)), judged(2, (0,), (1,)),
        judged(3, (0, 1), (0,)), judged(4, None, (1,)),
    ]  # fmt: skip
    lines = b"\n".join(msgspec.json.encode(one) for one in items)
    (tmp_path / "llmbar-direct.jsonl").write_bytes(lines + b'\n{"id": "half')
    (tmp_path / "other.jsonl").write_text('{"prompt": "not a result"}\n')
    call = msgspec.json.encode(Call("key", "tiny", (Message("user", SCRIPT),)))
    (tmp_path / "calls.jsonl").write_bytes(call + b"\n" + call + b"\n" + call[:9])
    return tmp_path


@pytest.fixture
def looking(bench, runs):
    with open_client(runs, bench) as client:
        yield client  # type: ignore[misc]


def test_results_are_listed_and_a_foreign_file_says_so(looking):
    lines = {line["key"]: line for line in looking.get("/benches")["benches"]}
    assert lines["llmbar-direct"]["items"] == 5
    assert lines["llmbar-direct"]["judges"] == ["direct@tiny"]
    assert "not a result" in lines["other"]["problem"]
    calls = lines["calls"]
    assert (calls["calls"], calls["judges"], calls["problem"]) == (2, ["tiny"], "")


def test_accuracy_confusion_and_kinds(looking):
    (block,) = looking.get("/benches/llmbar-direct")["judges"]
    assert block["shares"]["all"]["value"] == pytest.approx(2 / 5)
    assert block["shares"]["decided"]["value"] == pytest.approx(2 / 3)
    assert block["shares"]["valid"]["value"] == pytest.approx(2 / 4)
    assert block["kinds"] == {"disagree": 1, "tie": 1, "failed": 1, "agree": 2, "unlabelled": 0}
    cells = {(c["label"], c["choice"]): c["count"] for c in block["confusion"]}
    assert cells == {("1", "1"): 1, ("2", "2"): 1, ("2", "1"): 1, ("1", "tie"): 1, ("2", "none"): 1}
    assert set(block["subsets"]) == {"easy", "hard"}
    assert block["seconds"] == 2.5


def test_the_disagreements_come_with_their_raw_replies(looking):
    page = looking.get("/benches/llmbar-direct/items", kind="disagree")
    (item,) = page["items"]
    assert (item["id"], item["label"], item["choice"]) == ("item-2", "2", "1")
    assert item["rewards"][0]["evidence"][0]["observation"] == f"reply {SCRIPT}"
    failed = looking.get("/benches/llmbar-direct/items", q="NO VERDICT")
    assert [one["id"] for one in failed["items"]] == ["item-4"]
    cut = looking.get("/benches/llmbar-direct/items", limit=2)
    assert (cut["count"], cut["next"]) == (5, 2)
    rest = looking.get("/benches/llmbar-direct/items", limit=4, after=2, subset="hard")
    assert rest["items"] == []


def test_unknown_results_and_none_at_all(looking, client):
    assert looking.get("/benches/..%2f..%2fetc", 404)["error"]
    assert looking.get("/benches/none", 404)["error"]
    assert looking.get("/benches/other", 500)["error"]
    assert client.get("/benches")["benches"] == []


def test_a_judge_that_rates_single_answers_has_a_mean_and_nothing_wrong(tmp_path, runs):
    rated = [
        Judged(f"r{n}", "march@m", "", choice=(0,), values=(value,))
        for n, value in enumerate((1.0, 0.5))
    ]
    silent = Judged("r2", "march@m", "", values=(None,), status=Status.ABSTAIN, reason="no claim")
    lines = [msgspec.json.encode(one) for one in (*rated, silent)]
    (tmp_path / "rag.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    with open_client(runs, tmp_path) as client:
        (block,) = client.get("/benches/rag")["judges"]
    assert (block["is_rating"], block["mean"]) == (True, 0.75)
    assert block["kinds"] == {"disagree": 0, "tie": 0, "failed": 1, "agree": 0, "unlabelled": 2}
