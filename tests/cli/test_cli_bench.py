"""`burnish bench`, and `burnish compare` of two judges."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from judge_server import JudgeServer, shown, winner

from burnish.bench.items import Judged
from burnish.bench.judge_results import write_results
from burnish.bench.judging import read_results

DATA = Path(__file__).parents[2] / ".." / "shared" / "data"


def data(*names: str) -> Path:
    path = DATA.joinpath(*names)
    if not path.exists():
        pytest.skip(f"shared data '{'/'.join(names)}' is not here")
    return path


def rows(path: Path, *values: dict) -> Path:
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def test_recorded_judges_of_llmbar(typed, tmp_path, monkeypatch):
    words = ("bench", "llmbar", "--data", data("llmbar", "test.parquet"))
    recorded = ("--recorded", data("recorded_judges", "llmbar.parquet"))
    out = tmp_path / "recorded.jsonl"
    done = typed(*words, *recorded, "--out", out)
    assert done.code == 0, done.err
    assert "LLMBar: 290 items, 12 recorded judges" in done.out
    assert "GPT-4/Vanilla 82.8 81.4 [76.5, 85.4]" in " ".join(done.out.split())
    found = json.loads(typed(*words, *recorded, "--json").out)
    by_name = {judge["name"]: judge for judge in found["judges"]}
    gpt = by_name["GPT-4/Vanilla"]
    assert gpt["one_order"]["all"]["value"] == pytest.approx(240 / 290)
    assert gpt["accuracy"]["decided"]["value"] == pytest.approx(236 / 270)
    assert gpt["flips"]["flipped"]["value"] == pytest.approx(20 / 290)
    assert set(gpt["subsets"]) >= {"Natural", "Adversarial/Manual"}
    compared = typed("compare", f"{out}#GPT-4/CoT", f"{out}#GPT-4/Vanilla")
    assert "only A 5, only B 23" in compared.out
    assert "B is right more often by 6.2 points" in compared.out
    several = typed("compare", out, out)
    assert (several.code, several.err.count("\n")) == (2, 1)
    assert "#JUDGE: got" in several.err
    unknown = typed("compare", f"{out}#GPT-4/COT", f"{out}#GPT-4/CoT")
    assert "Did you mean 'GPT-4/CoT'?" in unknown.err
    foreign = rows(tmp_path / "foreign.jsonl", {"id": "1", "prompt": "p"})
    other = typed("compare", foreign, foreign)
    assert (other.code, other.err.count("\n")) == (2, 1)
    assert "foreign.jsonl: no result file" in other.err
    monkeypatch.setattr("burnish.cli.console.out._width", 80)
    narrow = typed(*words, *recorded).out
    assert "…" not in narrow


def test_a_replay_of_other_verdicts_wins_over_an_older_one(tmp_path):
    path = tmp_path / "r.jsonl"
    old = Judged("i", "j", choice=(0,), best=(0,), values=(1.0, 0.0))
    new = Judged("i", "j", choice=(1,), best=(0,), values=(0.0, 1.0))
    for one in (old, old, new):
        write_results(path, [one])
    assert len(path.read_text().splitlines()) == 2
    assert read_results(path) == [new]


def test_recorded_judges_of_pandalm_against_people(typed):
    words = ("bench", "pandalm", "--data", data("pandalm", "test.parquet"))
    done = typed(*words, "--recorded", data("recorded_judges", "pandalm.parquet"))
    assert done.code == 0, done.err
    assert "Cohen's kappa 0.509" in done.out
    assert "people among them    Fleiss' kappa 0.862" in done.out
    assert "more; --out FILE keeps all, each with its reasons" in done.out
    assert "the result file" not in done.out


def test_a_wrong_parquet_file_ends_with_2_every_time(tmp_path):
    """In a process of its own: reader threads used to abort it at its end."""
    words = ("bench", "llmbar", "--data", data("pandalm", "test.parquet"))
    command = [sys.executable, "-m", "burnish", *map(str, words)]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr


def test_a_judge_that_cannot_be_reached_has_no_accuracy(typed, tmp_path):
    with JudgeServer(lambda prompt: None) as server:
        words = ("--with", "direct", "--model", server.model, "--out", tmp_path / "o.jsonl")
        words += ("--retries", "0")
        done = typed("bench", "llmbar", "--data", llmbar_file(tmp_path / "l.jsonl"), *words)
    assert done.code == 3
    assert "no item has a verdict, so nothing is known about accuracy" in done.out
    assert "right of all" not in done.out


def test_rows_that_a_recipe_holds_out_are_counted(typed, tmp_path):
    rows(tmp_path / "q.jsonl", *({"question": f"{k} + 1?", "answer": str(k + 1)} for k in range(9)))
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        '[task]\nkind = "file"\npath = "q.jsonl"\nprompt = "{question}"\n'
        'held_out = { by = "share", share = 0.5 }\nfields = { answer = "answer" }\n[[rewards]]\nkind = "numeric"\n'
    )
    done = typed("reward", "check", recipe)
    assert done.code == 0, done.err
    found = re.search(r"(\d+) tasks of the recipe beside (\d+) held out", done.out)
    assert found is not None, done.out
    assert int(found[1]) + int(found[2]) == 9


def test_healthbench_scores_are_reproduced(typed):
    done = typed(
        "bench", "healthbench", "--data", data("healthbench_sample", "test.parquet"), "--json"
    )
    found = json.loads(done.out)
    assert found["items"] == 70
    assert found["largest_deviation"] < 1e-9
    assert found["score"]["value"] == pytest.approx(0.475, abs=0.001)


def test_ifeval_checks_answers_on_real_prompts(typed, tmp_path):
    from burnish.bench.loaders import load

    path = data("ifeval", "test.parquet")
    wanted = {"punctuation:no_comma", "change_case:english_lowercase"}
    items = [i for i in load("ifeval", path) if set(i.shown["instruction_id_list"]) <= wanted]
    assert len(items) > 10
    answers = rows(
        tmp_path / "answers.jsonl",
        *({"key": i.id, "response": "all of this is in small letters and has no pause"} for i in items[:-1]),
        {"key": items[-1].id, "response": "Oh, NO, never"},
    )  # fmt: skip
    done = typed("bench", "ifeval", "--data", path, "--answers", answers, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["items"] == len(items)
    assert found["score"]["value"] == pytest.approx(1 - 1 / len(items))
    assert set(found["instructions"]) == wanted
    none = typed("bench", "ifeval", "--data", path)
    assert (none.code, "give --answers FILE" in none.err) == (2, True)


def test_ifeval_answers_are_written_once_with_every_flag_of_a_server(typed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    row = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    path = rows(
        tmp_path / "ifeval.jsonl", *({"key": k, "prompt": f"p{k}", **row} for k in range(4))
    )
    words: tuple = ("bench", "ifeval", "--data", path, "--concurrency", 1, "--json")
    with JudgeServer(lambda prompt: "a, b" if prompt == "p0" else "no pause") as server:
        words = (*words, "--model", server.model, "--prices", "1000,2000")
        first = json.loads(typed(*words, "--budget-calls", 3).out)
        assert len(server.prompts) == 3
        assert (first["score"]["size"], first["failed"]) == (3, 1)
        assert first["spent"]["usd"] == pytest.approx(3 * 0.12)
        second = json.loads(typed(*words).out)
        assert len(server.prompts) == 4
        assert typed(*words, "--api-key-env", "NO_SUCH_KEY_HERE").code == 2
    assert second["score"]["value"] == pytest.approx(3 / 4)
    assert second["model"] == "scripted"
    assert second["file"] == first["file"]
    assert Path(second["file"]).is_file()


def test_a_result_file_of_its_own_for_every_setting(typed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = llmbar_file(tmp_path / "llmbar.jsonl")
    with JudgeServer(fair) as server:
        words = ("bench", "llmbar", "--data", path, "--with", "direct", "--model", server.model)
        files = [
            json.loads(typed(*words, *more, "--json").out)["file"]
            for more in ((), ("--one-order",), ("--temperature", 0.5), ())
        ]
    assert files[0] == files[3]
    assert len(set(files)) == 3
    assert all(file.startswith("results/llmbar-direct-scripted-") for file in files)


def llmbar_file(path: Path) -> Path:
    return rows(
        path,
        *(
            {
                "id": f"{subset}-{k}", "subset": subset, "input": "i",
                "output_1": f"good {subset} {k}" if k % 2 else f"bad {subset} {k}",
                "output_2": f"bad {subset} {k}" if k % 2 else f"good {subset} {k}",
                "label": 1 if k % 2 else 2,
            }
            for subset in ("Natural", "Adversarial/Manual")
            for k in range(4)
        ),
    )  # fmt: skip


def fair(prompt: str) -> str:
    return winner("A" if "good" in shown(prompt)[0] else "B")


def test_a_live_judge_goes_on_where_it_was_stopped_and_is_compared(typed, tmp_path):
    path = llmbar_file(tmp_path / "llmbar.jsonl")
    good, biased = tmp_path / "good.jsonl", tmp_path / "biased.jsonl"
    with JudgeServer(fair) as server:
        words = ("bench", "llmbar", "--data", path, "--with", "direct", "--model", server.model)
        first = typed(*words, "--out", good, "--limit", 3, "--json")
        assert json.loads(first.out)["items"] == 3
        done = typed(*words, "--out", good)
        assert len(server.prompts) == 16
    assert done.code == 0, done.err
    assert "100.0 [67.6, 100.0] *" in done.out
    assert done.out.count("* too few to say: fewer than 10 items") == 2  # the judge, its subsets
    assert "Adversarial/Manual" in done.out
    with JudgeServer(lambda prompt: winner("A")) as server:
        words = ("bench", "llmbar", "--data", path, "--with", "direct", "--model", server.model)
        done = typed(*words, "--out", biased, "--json")
    (judge,) = json.loads(done.out)["judges"]
    assert judge["accuracy"]["ties"] == 8
    assert judge["one_order"]["all"]["value"] == 0.5
    assert judge["flips"]["flipped"]["value"] == 1
    assert "* too few to say: fewer than 10 items" in typed("compare", biased, good).out
    compared = typed("compare", biased, good, "--json")
    found = json.loads(compared.out)
    assert found["test"]["method"] == "mcnemar"
    assert found["test"]["p_value"] == pytest.approx(2 * 0.5**8)
    assert found["verdict"].startswith("too few to say: B - A is +100.0 points [54.1, 100.0]")


@pytest.mark.parametrize("out", [(), ("--out", "found.jsonl")])
@pytest.mark.parametrize("keeps_record", [True, False])
def test_the_command_that_recorded_replays(typed, tmp_path, monkeypatch, out, keeps_record):
    monkeypatch.chdir(tmp_path)
    path = llmbar_file(tmp_path / "llmbar.jsonl")
    with JudgeServer(fair) as server:
        model = server.model
        words = ("bench", "llmbar", "--data", path, "--with", "direct", "--model", model, *out)
        first = typed(*words, "--record", "said.jsonl", "--json")
    recorded = Path("said.jsonl").read_text()
    words += ("--replay", "said.jsonl", "--json", *(["--record", "said.jsonl"] * keeps_record))
    found = [json.loads(first.out)]
    on_file = Path(found[0]["file"])
    for is_anew in (False, True):
        if is_anew:
            on_file.unlink()
        done = typed(*words)
        assert done.code == 0, done.err
        found.append(json.loads(done.out))
    assert found[0]["judges"] == found[1]["judges"] == found[2]["judges"]
    assert [one["file"] for one in found] == [str(on_file)] * 3
    assert found[2]["spent"]["calls"] == 0
    assert Path("said.jsonl").read_text() == recorded
    named = typed(
        *("scripted" if word == model else word for word in words), "--out", "named.jsonl"
    )
    assert json.loads(named.out)["judges"] == found[0]["judges"]
    other = typed(*(f"{model}-2" if word == model else word for word in words))
    assert other.code == 2
    assert "the log holds scripted; choose one with model=" in other.err


def test_rmbench_and_rewardbench2_with_a_rating_judge(typed, tmp_path):
    """A judge that rates by length: easy pairs right, hard ones wrong."""
    styles = {"id": "1", "prompt": "p", "domain": "chat", "chosen": ["a", "aa aa", "aaa aaa aaa"]}
    path = rows(tmp_path / "rm.jsonl", {**styles, "rejected": ["b", "bb bb", "bbb bbb bbb"]})

    def by_words(prompt: str) -> str:
        text = prompt.split("=== response ")[1].split("\n", 1)[1].split("\n=== end of")[0]
        return json.dumps({"reasons": "long", "rating": min(10, 2 * len(text.split()))})

    with JudgeServer(by_words) as server:
        words = (
            "--with", "point", "--model", server.model, "--json", "--out", tmp_path / "o.jsonl",
        )  # fmt: skip
        done = typed("bench", "rmbench", "--data", path, *words)
        (judge,) = json.loads(done.out)["judges"]
        assert (judge["styles"]["easy"], judge["styles"]["normal"], judge["styles"]["hard"]) == (
            1,
            0,
            0,
        )
        best = {
            "id": "x", "prompt": "p", "subset": "Focus", "chosen": ["a b c d"],
            "rejected": ["a", "b", "c"],
        }  # fmt: skip
        tied = {
            "id": "tied:1", "prompt": "p", "subset": "Ties", "chosen": ["a b c", "d e f"],
            "rejected": ["a"],
        }  # fmt: skip
        ref = {
            "id": "ref:1", "prompt": "p", "subset": "Ties", "chosen": ["a b c d"],
            "rejected": ["a"],
        }  # fmt: skip
        path = rows(tmp_path / "rb.jsonl", best, tied, ref)
        done = typed("bench", "rewardbench2", "--data", path, *words)
    (judge,) = json.loads(done.out)["judges"]
    assert judge["subsets"]["Focus"]["all"]["value"] == 1
    # Both prompts right, gaps above a spread of 0, whose margin term is 0: .3 + .3 + .2 + .2
    assert judge["ties_score"] == pytest.approx(1.0)


def test_reward_check_of_a_recipe_a_function_and_a_file(typed, tmp_path):
    own = tmp_path / "mine.py"
    own.write_text("def words(text, answer):\n    return len(text.split()) / 100\n")
    file = rows(
        tmp_path / "r.jsonl",
        {"prompt": "p", "responses": ["one two", "three"], "answer": "x"},
        {"prompt": "q", "response": "one two three", "answer": "x"},
        {"prompt": "q", "response": "four", "answer": "x"},
    )
    done = typed("reward", "check", f"{own}:words", "--data", file)
    assert done.code == 0, done.err
    assert "reward 'words' on 4 responses in 2 groups" in done.out
    assert ": a policy will find this; raised in 4 of 4" in done.out
    assert "reward 'words': look at padding" in done.out
    found = json.loads(typed("reward", "check", f"{own}:words", "--data", file, "--json").out)
    padding = next(one for one in found["findings"] if one["name"] == "padding")
    assert padding["is_bad"]
    assert padding["estimate"]["low"] > 0
    recipe = typed("reward", "check", "tiny", "--limit", "5")
    assert recipe.code == 0, recipe.err
    assert "padding never changes the reward" in recipe.out


def test_healthbench_with_a_live_judge_by_its_own_points(typed, tmp_path):
    row = {
        "prompt_id": "h1",
        "prompt": [{"role": "user", "content": "I have a cough."}],
        "rubrics": [
            {"criterion": "Asks how long", "points": 6, "tags": []},
            {"criterion": "Says to rest", "points": 4, "tags": []},
            {"criterion": "Names a wrong dose", "points": -5, "tags": []},
        ],
        "example_tags": ["theme:hedging"],
    }
    path = rows(tmp_path / "h.jsonl", row)
    answers = rows(tmp_path / "a.jsonl", {"id": "h1", "response": "How long? Rest."})
    marks = [{"item": k, "reasons": "seen", "met": k != 2} for k in (1, 2, 3)]
    with JudgeServer(lambda prompt: json.dumps({"items": marks})) as server:
        words = ("bench", "healthbench", "--data", path, "--with", "point", "--model", server.model)
        lacking = typed(*words, "--out", tmp_path / "o.jsonl")
        done = typed(*words, "--answers", answers, "--out", tmp_path / "o.jsonl", "--json")
    assert (lacking.code, "has no response to judge; give --answers" in lacking.err) == (2, True)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["score"]["value"] == pytest.approx((6 - 5) / 10)
    assert not any(word in server.prompts[0] for word in ("points", "-5"))


def test_pairs_to_train_on_are_written(typed, tmp_path):
    row = {"instruction": "Say hi.", "output_1": "Hi.", "output_2": "Hello.", "preference": 2}
    rows = [row, row | {"instruction": "Say no.", "preference": 1.5}]
    path, out = tmp_path / "a.jsonl", tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    done = typed("bench", "alpaca_pairs", "--data", path, "--pairs", out, "--json")
    assert done.code == 0, done.err
    assert (json.loads(done.out)["pairs"], json.loads(done.out)["ties"]) == (2, 1)
    first, tie = map(json.loads, out.read_text().splitlines())
    assert (first["chosen"], first["rejected"], tie["tie"]) == ("Hello.", "Hi.", True)
    path.write_text(json.dumps({"key": 1, "prompt": "p", "instruction_id_list": [], "kwargs": []}))
    done = typed("bench", "ifeval", "--data", path, "--pairs", out)
    assert done.code == 2
    assert "--pairs expected one in which responses are compared" in done.err


def test_solutions_to_train_on_are_written(typed, tmp_path):
    row = {"id": "sort-1", "task": "sort", "input": "b a", "steps": ["x", "y"], "mistake_index": 0}
    path = rows(tmp_path / "a.jsonl", row, row | {"id": "sort-2", "mistake_index": None})
    out = tmp_path / "solutions.jsonl"
    done = typed("bench", "bigbench_mistake", "--data", path, "--solutions", out, "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert (told["solutions"], told["wrong"], told["steps"]) == (2, 1, 4)
    first, second = map(json.loads, out.read_text().splitlines())
    assert (first["labels"], second["labels"]) == ([0, None], [1, 1])
    done = typed("bench", "bigbench_mistake", "--data", path)
    assert done.code == 2
    assert "--solutions FILE" in done.err
    path.write_text(
        json.dumps({"instruction": "p", "output_1": "x", "output_2": "y", "preference": 2})
    )
    done = typed("bench", "alpaca_pairs", "--data", path, "--solutions", out)
    assert done.code == 2
    assert "labels steps" in done.err


def claims_of(prompt: str) -> str:
    """A model that plays MARCH's roles: it claims 9 bridges and reads 14."""
    if prompt.startswith("List what"):
        return "- Question: How many bridges? [Answer: 9]"
    return "1. Evidence: 14 bridges [Answer: 14]"


def test_a_faithfulness_benchmark_reports_balanced_accuracy(typed, tmp_path):
    marks = {"True": "[]", "False": '[{"label": ["Unwanted"]}]'}
    rows = [
        {"source": "14 bridges.", "summary": f"9 bridges, {n}.", "annotations": marks[str(n == 0)],
         "batch": 1, "sample_id": n, "metadata": "{}"}
        for n in range(2)
    ]  # fmt: skip
    file = tmp_path / "faith.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with JudgeServer(claims_of) as server:
        words = ("bench", "faithbench", "--data", file, "--with", "march", "--model", server.model)
        done = typed(*words, "--out", tmp_path / "out.jsonl", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["decided"], found["balanced"]["value"]) == (2, 0.5)
    assert (found["caught"]["value"], found["passed"]["value"]) == (1.0, 0.0)


def test_march_judges_documents_and_answers_of_a_file(typed, tmp_path):
    row = {
        "prompt": "About Arlen?", "documents": ["14 bridges."], "response": "9 bridges.",
        "note": "SECRET",
    }  # fmt: skip
    file = rows(tmp_path / "rag.jsonl", row)
    with JudgeServer(claims_of) as server:
        words = ("judge", file, "--with", "march", "--model", server.model)
        done = typed(*words, "--temperature", "0.6")
    assert done.code == 0, done.err
    assert "0 of 1 claims hold" in done.out
    assert "fails: How many bridges?" in done.out
    assert len(server.prompts) == 1 + 3  # documents needed no --show
    assert not any("SECRET" in prompt or "9 bridges" in prompt for prompt in server.prompts[1:])


@pytest.mark.parametrize("matcher", ["f1", "judge"])
def test_the_forecast_of_march_is_what_it_asks(typed, tmp_path, matcher):
    row = {"prompt": "About Arlen?", "documents": ["14 bridges."], "response": "9 bridges."}
    file = rows(tmp_path / "rag.jsonl", row)

    def said(prompt: str) -> str:
        return "1. different" if "| second:" in prompt else claims_of(prompt)

    with JudgeServer(said) as server:
        words = ("judge", file, "--with", "march", "--model", server.model, "--temperature", "0.6")
        found = json.loads(typed(*words, "--option", f"matcher={matcher}", "--json").out)
    assert found["forecast"]["calls"] == 1 + 3 + (matcher == "judge") == len(server.prompts)


def test_a_rating_judge_that_rates_nothing_ends_with_3(typed, tmp_path):
    row = {"prompt": "About Arlen?", "documents": ["14 bridges."], "response": "9 bridges."}
    file = rows(tmp_path / "rag.jsonl", row)
    with JudgeServer(lambda prompt: "I see no claim.") as server:
        done = typed("judge", file, "--with", "march", "--model", server.model)
    assert done.code == 3
    assert "no item got a verdict; all 1: abstain, no claim to check" in done.err
    assert "--with" in done.err
