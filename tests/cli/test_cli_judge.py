"""`burnish judge` and `burnish judge probe`, over a loopback server and in this process."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from cli_words import Type
from judge_server import JudgeServer, shown, winner

from burnish.bench.edits import format_marks, word_count
from burnish.seeds import Seeds


def rows(path: Path, *values: dict) -> Path:
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


PAIRS = (
    {"id": "sum", "prompt": "3 + 4?", "a": "It is good: 7.", "b": "It is 8.", "winner": "a"},
    {"id": "capital", "prompt": "France?", "chosen": "good: Paris", "rejected": "Rome"},
    {
        "id": "poem", "prompt": "Rain?", "a": "I cannot.", "b": "good: drops on glass",
        "note": "SECRET",
    },
)  # fmt: skip


def fair(prompt: str) -> str:
    """The response that says `good` wins, wherever it stands."""
    first, second = shown(prompt)
    return winner("A" if "good" in first else "B" if "good" in second else "Tie")


@pytest.fixture
def pairs(tmp_path):
    return rows(tmp_path / "pairs.jsonl", *PAIRS)


def test_pairs_are_judged_in_both_orders_and_explained(typed, pairs):
    with JudgeServer(fair) as server:
        done = typed("judge", pairs, "--with", "direct", "--model", server.model)
    assert done.code == 0, done.err
    assert len(server.prompts) == 6
    assert "forecast  6 calls" in done.out
    assert "response 1 wins (1.000)" in done.out
    assert "forward 1.000" in done.out
    assert "backward 1.000" in done.out
    assert "A it is" in done.out
    assert "right     100.0 % [34.2, 100.0] (too few to say) of all" in done.out
    assert "spent     6 calls, 660 tokens" in done.out
    assert not any("SECRET" in prompt for prompt in server.prompts)


def test_rows_on_file_are_not_asked_again(typed, pairs, tmp_path):
    out = tmp_path / "judged.jsonl"
    with JudgeServer(fair) as server:
        words = ("judge", pairs, "--model", server.model, "--out", out)
        assert typed(*words, "--limit", "2").code == 0
        assert len(server.prompts) == 4
        again = typed(*words)
        assert len(server.prompts) == 6
        assert "2 of 3 rows are on file already" in again.out
        assert typed(*words).code == 0
        assert len(server.prompts) == 6
    assert len(out.read_text().splitlines()) == 3


def test_prose_is_no_verdict(typed, pairs):
    with JudgeServer(lambda prompt: "I would say that A wins, 9 to 1.") as server:
        done = typed("judge", pairs, "--model", server.model, "--json")
    assert done.code == 3
    (line,) = done.err.splitlines()
    assert line.startswith("burnish: no item got a verdict; all 3: parse_error, ")
    assert "expected one JSON object and nothing else, got" in line
    assert "I would say" in line
    assert line.endswith("follows the prompt's format, or another judge (--with).")
    found = json.loads(done.out)
    assert found["statuses"] == {"parse_error": 3}
    assert all(item["values"] == [None, None] for item in found["items"])
    assert found["accuracy"]["valid"] is None
    assert len(server.prompts) == 3 * 2 * 2  # each order with one repair


def test_a_failure_of_the_connection_is_told_once_with_a_count(typed, pairs):
    with JudgeServer(fair) as server:
        gone = server.model
    down = typed("judge", pairs, "--model", gone, "--with", "openrs", "--retries", "0")
    assert down.code == 3
    assert down.err.splitlines()[-1].startswith("burnish: no server answers: http://127.0.0.1:")
    assert "forward" not in down.out
    # A server that fails for some: the first is explained, the others have a line.
    with JudgeServer(lambda prompt: fair(prompt) if "Rain" in prompt else None) as server:
        some = typed("judge", pairs, "--model", server.model, "--retries", "0")
    assert some.code == 0
    assert some.out.count("forward infra_error") == 1
    assert "response 2 wins (1.000)" in some.out
    assert [line.split()[:2] for line in some.out.splitlines() if line.startswith("capital")] == [
        ["capital", "infra_error"]
    ]
    assert "  2 items, first sum: infra_error  " in some.out


@pytest.mark.parametrize("command", ["judge", "judge probe"])
def test_a_dead_server_is_asked_a_few_times_and_not_for_every_row(typed, tmp_path, command):
    with JudgeServer(fair) as server:
        gone = server.model
    many = rows(
        tmp_path / "many.jsonl",
        *({"prompt": f"{k}?", "a": f"good {k}", "b": "bad"} for k in range(40)),
    )
    record = tmp_path / "calls.jsonl"
    words = (*command.split(), many, "--model", gone, "--retries", "0", "--concurrency", 2)
    done = typed(*words, "--record", record)
    assert done.code == 3
    last = done.err.splitlines()[-1]
    assert last.startswith(f"burnish: no server answers: {gone.partition('#')[0]}")
    assert "ConnectError" in last
    assert last.endswith("Start the server, or correct the address of --model")
    assert len(record.read_text().splitlines()) <= 8


def test_a_server_that_was_reached_once_is_asked_about_every_row(typed, tmp_path):
    asked = 0

    def broken(prompt: str) -> bytes | str:
        nonlocal asked
        asked += 1
        return fair(prompt) if asked == 1 else b""

    many = rows(
        tmp_path / "m.jsonl", *({"prompt": f"{k}?", "a": "good", "b": "x"} for k in range(8))
    )
    with JudgeServer(broken) as server:
        words = ("--retries", "0", "--concurrency", 1, "--one-order")
        done = typed("judge", many, "--model", server.model, *words)
    assert done.code == 0, done.err
    assert asked >= 8


def test_a_budget_ends_the_asking(typed, pairs):
    with JudgeServer(fair) as server:
        done = typed(
            "judge", pairs, "--model", server.model, "--budget-calls", "2", "--concurrency", 1
        )
        assert len(server.prompts) == 2
    assert done.code == 0
    assert "the budget of 2 calls ends after about 33% of it" in done.out
    assert "the budget of 2 calls is spent" in done.out
    assert "1 ok" in done.out


def test_prices_make_a_forecast_in_dollars(typed, pairs):
    with JudgeServer(fair) as server:
        words = ("judge", pairs, "--model", server.model, "--prices", "1000,2000")
        done = typed(*words, "--budget-usd", "0.2", "--json", "--concurrency", 1)
    found = json.loads(done.out)
    assert found["forecast"]["usd"] > 1
    # A call costs 0.1 + 0.02 dollars: two of them go over 0.2.
    assert found["spent"]["calls"] == 2
    assert found["spent"]["usd"] == pytest.approx(0.24)
    assert found["items"][0]["cost_usd"] == pytest.approx(0.24)


def test_a_record_answers_again_without_a_call(typed, pairs, tmp_path):
    record = tmp_path / "record.jsonl"
    with JudgeServer(fair) as server:
        first = typed("judge", pairs, "--model", server.model, "--record", record, "--json")
    again = typed("judge", pairs, "--replay", record, "--json")
    assert again.code == 0, again.err
    one, two = json.loads(first.out), json.loads(again.out)
    assert [item["values"] for item in one["items"]] == [item["values"] for item in two["items"]]
    assert two["spent"]["calls"] == 0


def test_single_responses_are_rated(typed, tmp_path):
    path = rows(tmp_path / "one.jsonl", {"prompt": "p", "response": "x"})
    with JudgeServer(lambda prompt: '{"reasons": "fine", "rating": 7}') as server:
        done = typed("judge", path, "--with", "point", "--model", server.model)
    assert done.code == 0, done.err
    assert "row-1  0.667" in done.out
    assert "7 of 10: fine" in done.out


def test_judges_that_decide_alone_need_no_model(typed, tmp_path):
    call = '<tool name="search">{"query": "Eiffel tower"}</tool>'
    need = {"intent": "the tower", "tool": "search", "words": ["Eiffel"]}
    plans = rows(tmp_path / "p.jsonl", {"prompt": "Paris?", "response": call, "needs": [need]})
    done = typed("judge", plans, "--with", "atp", "--oracle")
    assert done.code == 0, done.err
    assert "row-1  1.000" in done.out
    assert "forecast  no model is asked" in done.out
    assert "or all of them with --oracle" in typed("judge", plans, "--with", "atp").err
    free = rows(tmp_path / "free.jsonl", {"prompt": "Paris?", "response": call})
    said = typed("judge", free, "--with", "atp").err
    assert said.endswith("no further column.\n")
    text = "It has 14 bridges [1]. It has three parks."
    cited = {"prompt": "?", "response": text, "documents": ["It has 14 bridges.", "Snow falls."]}
    found = typed("judge", rows(tmp_path / "c.jsonl", cited), "--with", "citations", "--json")
    assert json.loads(found.out)["items"][0]["values"] == [1.0]


def test_other_settings_are_not_mixed_into_a_result_file(typed, pairs, tmp_path):
    out = tmp_path / "judged.jsonl"
    with JudgeServer(fair) as server:
        words = ("judge", pairs, "--model", server.model, "--out", out)
        assert typed(*words).code == 0
        other = typed(*words, "--one-order")
        assert len(server.prompts) == 6
    assert (other.code, other.err.count("\n")) == (2, 1)
    assert "'direct@scripted' had other settings" in other.err


def test_an_oracle_is_rehearsed_and_failures_rest_on_no_label(typed, tmp_path):
    levels = {"0": "no dose", "1": "a dose without its unit", "2": "the dose"}
    items = [
        {"id": "i1", "title": "dose", "tier": "essential", "description": levels},
        {"id": "x1", "title": "harm", "tier": "pitfall", "tag": "safety", "description": levels},
    ]
    row = {"prompt": "p", "response": "x", "rubric": {"query": "p", "items": items}}
    path = rows(tmp_path / "r.jsonl", row)
    with JudgeServer(lambda prompt: "no marks from me") as server:
        words = ("judge", path, "--with", "rubric", "--model", server.model, "--oracle")
        done = typed(*words)
        assert len(server.prompts) == 2  # a question and its repair
        found = json.loads(typed(*words, "--json").out)
    assert done.code == 3, done.err
    assert "forecast  1 call," in done.out
    assert "repairs come on top, steps vary with the replies" in done.out
    assert "oracle  " not in done.out
    assert (found["forecast"]["calls"], found["oracle_share"]) == (1, 0)


def test_an_in_process_model_judges(typed, pairs, tmp_path):
    """The tiny model with room for the prompt: it says nothing readable, and gets no number."""
    from burnish.lm.new_model import tiny_model

    folder = tiny_model(tmp_path / "tiny_judge")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 8192}))
    words = ("--model", folder, "--max-tokens", "8", "--limit", "1")
    done = typed("judge", pairs, *words, "--json")
    assert done.code == 3, done.err
    assert "--max-tokens" in done.err.splitlines()[-1]
    found = json.loads(done.out)
    assert found["statuses"] == {"parse_error": 1}
    assert found["spent"]["calls"] == 4
    assert found["spent"]["estimated"] == 0
    assert found["spent"]["completion_tokens"] <= 4 * 8
    raw = found["items"][0]["rewards"][0]["parts"][0]["evidence"]
    assert len(raw) == 2  # the reply and its repair are kept


class Planted:
    """A judge over HTTP whose log-odds are a known sum; its draws depend on what it is shown."""

    def __init__(self, *, place: float = 0.0, length: float = 0.0, format: float = 0.0) -> None:
        self.place, self.length, self.format = place, length, format

    def __call__(self, prompt: str) -> str:

        a, b = shown(prompt)
        words = math.log2((1 + word_count(a)) / (1 + word_count(b)))
        marks = math.log2((1 + format_marks(a)) / (1 + format_marks(b)))
        odds = self.place + self.length * words + self.format * marks
        odds += 1.5 * (a.startswith("good") - b.startswith("good"))
        draw = Seeds(0).rng("planted", a, b).random()
        return winner("A" if draw < 1 / (1 + math.exp(-odds)) else "B")


@pytest.fixture
def many(tmp_path):
    values = []
    for number in range(60):
        rng = Seeds(1).rng("row", number)
        texts = []
        for quality in ("good", "poor"):
            points = "".join("\n- point" for _ in range(rng.choice([0, 1, 3, 7])))
            texts.append(f"{quality} {'word ' * rng.randrange(8, 120)}{number}{points}")
        values.append({"id": str(number), "prompt": "q", "chosen": texts[0], "rejected": texts[1]})
    return rows(tmp_path / "many.jsonl", *values)


def findings(typed: Type, many: Path, judge: Planted, *words: object) -> dict[str, dict]:
    with JudgeServer(judge) as server:
        done = typed(
            "judge", "probe", many, "--model", server.model, "--limit", 0, "--json", *words
        )
    assert done.code == 0, done.err
    return {one["name"]: one for one in json.loads(done.out)["findings"]}


def test_probe_finds_planted_biases_of_a_judge_over_http(typed, many):
    planted = {"place": 1.0, "length": 0.9, "format": 0.8}
    found = findings(typed, many, Planted(**planted), "--edits", "none")
    for name, size in planted.items():
        estimate = found[f"{name} slope"]["estimate"]
        assert estimate["low"] <= size <= estimate["high"], (name, estimate)
        assert found[f"{name} slope"]["is_bias"]
    assert found["first place"]["is_bias"]


def test_probe_clears_a_fair_judge(typed, many):
    found = findings(typed, many, Planted(), "--edits", "padding")
    for name in ("first place", "place slope", "length slope", "format slope", "edit: padding"):
        estimate = found[name]["estimate"]
        assert estimate["low"] <= 0 <= estimate["high"], (name, estimate)


def test_probe_on_the_screen_and_its_mistakes(typed, many, tmp_path):
    with JudgeServer(lambda prompt: winner("A")) as server:
        done = typed(
            "judge", "probe", many, "--model", server.model, "--limit", 6, "--edits", "praise"
        )
        assert len(server.prompts) == 6 * 2 + 6 * 2
        wrong = typed("judge", "probe", many, "--model", server.model, "--edits", "prays")
    assert "forecast  24 calls" in done.out
    readings = done.out.replace("(too few to say)", "")
    assert "the winner of 100% of the pairs" in " ".join(readings.split())
    assert "biased by" not in done.out
    assert "too few to say: fewer than 10 pairs with verdicts" in done.out
    assert done.out.count("(too few to say)") >= 4, done.out
    assert (wrong.code, wrong.err.count("\n")) == (2, 1)
    assert "--edits: got 'prays'" in wrong.err
    single = rows(tmp_path / "one.jsonl", {"prompt": "p", "response": "x"})
    lone = typed("judge", "probe", single, "--model", "http://127.0.0.1:9/v1#m")
    assert (lone.code, "no row has two responses" in lone.err) == (2, True)


def test_a_probe_of_few_pairs_does_not_clear_a_judge(typed, many):
    with JudgeServer(Planted()) as server:
        words = ("judge", "probe", many, "--model", server.model, "--edits", "none", "--limit", 4)
        few = typed(*words)
        record = json.loads(typed(*words, "--json").out)
    found = record["findings"]
    assert record["verdict"] == "too few to say: fewer than 10 pairs with verdicts"
    assert "no bias found" not in few.out
    assert "too few to say: fewer than 10 pairs" in few.out
    assert {one["doubt"] for one in found if one["estimate"]} == {"too few to say"}


def test_a_column_that_a_judge_needs_is_asked_for(typed, tmp_path):
    row = {"prompt": "p", "response": "x", "rubric": {"query": "p", "items": []}}
    words = ("--with", "rubric", "--model", "http://127.0.0.1:9/v1#m")
    hidden = typed("judge", rows(tmp_path / "r.jsonl", row), *words)
    assert (hidden.code, hidden.err.count("\n")) == (2, 1)
    assert "needs the column 'rubric'; it is hidden from judges; show it with" in hidden.err
    other = {"prompt": "p", "response": "x", "rubrik": "r"}
    absent = typed("judge", rows(tmp_path / "s.jsonl", other), *words)
    assert "needs the column 'rubric'; the data has rubrik. Did you mean 'rubrik'?" in absent.err


def test_an_anchor_makes_a_pair_judge_score_single_responses(typed, tmp_path):
    row = {"prompt": "p", "response": "good one", "reference": "other", "answer": "SECRET"}
    with JudgeServer(fair) as server:
        words = ("--model", server.model, "--anchor", "reference", "--json")
        done = typed("judge", rows(tmp_path / "r.jsonl", row), *words)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["items"][0]["values"] == [1.0]
    assert found["oracle_share"] == 0
    assert not any("SECRET" in prompt for prompt in server.prompts)


@pytest.mark.parametrize(
    "body",
    [b"<!doctype html><title>Sign in</title>", b'{"model": "scripted", "choices": []}'],
    ids=["page", "no-choices"],
)
def test_a_reply_that_no_model_wrote_is_trouble_outside(typed, pairs, monkeypatch, body):
    """It is tried again, and where nothing else comes the command fails."""
    monkeypatch.setattr("burnish.lm.request_pool.backoff_s", lambda *_, **__: 0.0)
    with JudgeServer(lambda _: body) as server:
        done = typed("judge", pairs, "--model", server.model, "--one-order", "--json")
    assert json.loads(done.out)["statuses"] == {"infra_error": 3}


def test_a_reply_cannot_steer_the_terminal(typed, pairs):
    """Escape sequences of a judge, or of the answers that it quotes, are written out."""

    def shouting(prompt: str) -> str:
        return json.dumps({"reasons": "\x1b[2J\x1b]0;owned\x07\u202egood", "winner": "A"})

    with JudgeServer(shouting) as server:
        done = typed("judge", pairs, "--model", server.model, "--one-order")
    assert done.code == 0, done.err
    assert "\\x1b[2J" in done.out
    assert not set("\x1b\x07\u202e") & set(done.out + done.err)


def test_rate_limits_reach_the_server():
    from burnish.bench.open_judge import JudgeSettings, open_judge
    from burnish.cli.shared_options import JudgeFlags

    limited = JudgeSettings(model="http://127.0.0.1:9/v1#m", concurrency=3, rpm=30.0, tpm=5000.0)
    limits = open_judge(limited).model.lm.pool.limits
    assert (limits.concurrency, limits.requests_per_minute, limits.tokens_per_minute) == (
        3,
        30,
        5000,
    )
    assert JudgeSettings._fields == JudgeFlags._fields
    assert JudgeSettings._field_defaults == JudgeFlags._field_defaults


def test_retries_hedges_and_the_rule_of_orders_are_flags(typed, pairs):
    with JudgeServer(lambda prompt: None) as server:
        words = ("--one-order", "--retries", "0", "--structured", "off")
        done = typed("judge", pairs, "--model", server.model, *words)
    assert done.code == 3
    assert len(server.prompts) == 3
    first = winner("A")
    with JudgeServer(lambda prompt: first) as server:
        words = ("judge", pairs, "--model", server.model, "--json")
        assert json.loads(typed(*words).out)["statuses"] == {"ok": 3}
        done = typed(*words, "--rule", "abstain", "--hedge-after", "30")
    found = json.loads(done.out)
    assert found["statuses"] == {"abstain": 3}
    assert found["items"][0]["values"] == [None, None]
