"""The games of the studies: repeatable, short, with the shares and labels they promise."""

import functools
import random
from collections import Counter
from pathlib import Path

import pytest
from lab.real import graded_search
from recipes.afrl import shop_search
from recipes.brpo import stories
from recipes.clipo import two_ways
from recipes.medalign import health

from burnish.errors import UserError
from burnish.tasks import File, HeldOutShare, load_file
from burnish.tasks.function import Function, FunctionTasks
from burnish.tasks.rows import read_table

DATA = Path(__file__).parents[2] / ".." / "shared" / "data"
GAMES = (shop_search, two_ways, health, stories)
DRAWS = 2000


def drawn(game, count=DRAWS, **options):
    return [game.make(random.Random(seed), **options) for seed in range(count)]


def share(rows, key):
    return sum(bool(row[key]) for row in rows) / len(rows)


@pytest.fixture(scope="session")
def tokenizer():
    pytest.importorskip("tokenizers")
    pytest.importorskip("gguf")
    from burnish.lm.embedded import embedded_model, find_gguf
    from burnish.lm.tokenizer import Tokenizer

    try:
        find_gguf()
    except UserError as error:
        pytest.skip(str(error))
    return Tokenizer.from_folder(embedded_model())


@pytest.mark.parametrize("game", GAMES)
def test_the_same_generator_gives_the_same_task(game):
    assert drawn(game, 50) == drawn(game, 50)
    assert len({row["prompt"] for row in drawn(game, 200)}) > 150
    assert len({frozenset(row) for row in drawn(game, 200)}) == 1


@pytest.mark.parametrize("game", GAMES)
def test_each_game_is_a_task_set_of_kind_function(game):
    tasks = FunctionTasks(Function(path=f"{game.__name__}:make", held_out_size=40), seed=1)
    held_out = tasks.held_out()
    assert len(held_out) == 40
    shown = {task.prompt for task in tasks.sample(300)}
    assert not shown & {task.prompt for task in held_out}
    assert {"demonstration"} <= tasks.fields


@pytest.mark.parametrize("game", GAMES)
def test_prompts_and_answers_are_short(game, tokenizer):
    options = {"tail": 0.5} if game is shop_search else {}
    rows = drawn(game, 1000, **options)
    assert max(len(tokenizer.encode(row["prompt"])) for row in rows) <= 120
    assert max(len(tokenizer.encode(row["demonstration"])) for row in rows) <= 48


def test_grades_are_one_token_at_the_start_of_an_answer(tokenizer):
    for grade in shop_search.GRADES:
        ids = tokenizer.encode(f"{grade}\nrule: category")
        assert tokenizer.decode(ids[:1]) == grade
        assert len(tokenizer.encode(grade)) == 1


def test_shop_search_draws_the_tail_as_often_as_asked():
    for tail in (0.03, 0.3):
        rows = drawn(shop_search, tail=tail)
        assert 1 - share(rows, "head") == pytest.approx(tail, abs=3 * (tail / DRAWS) ** 0.5)
    rules = Counter(row["rule"] for row in drawn(shop_search, tail=1.0))
    assert set(rules) == set(shop_search.TAIL_RULES)
    assert len(rules) == 10
    assert min(rules.values()) > 0.7 * DRAWS / 10


def test_shop_search_head_grade_misses_exactly_the_broken_tail():
    rows = drawn(shop_search, tail=0.5, head_only_reward=True)
    for row in rows:
        if row["head"]:
            assert row["head_grade"] == row["grade"]
        else:
            assert row["head_grade"] == "A"
            assert row["grade"] in ("A", shop_search.TAIL_RULES[row["rule"]].grade)
    tail = [row for row in rows if not row["head"]]
    missed = sum(row["head_grade"] != row["grade"] for row in tail) / len(tail)
    assert missed == pytest.approx(0.7, abs=0.05)
    assert "head_grade" not in shop_search.make(random.Random(0))


def test_shop_search_head_grades_follow_the_kinds():
    assert shop_search.head_grade("mug", "mug") == "A"
    assert shop_search.head_grade("mug", "cup") == "B"
    assert shop_search.head_grade("mug", "kettle") == "C"
    assert shop_search.head_grade("mug", "tent") == "D"
    grades = Counter(row["grade"] for row in drawn(shop_search, tail=0.0))
    assert min(grades.values()) > 0.15 * DRAWS


def _query_and_item(row):
    query, item = row["prompt"].split("\nQuery: ")[1].split("\nItem: ")
    return query, item


READINGS = {
    "negation": lambda query, item: f"with a {query.split('without a ')[1]}" in item,
    "brand-ban": lambda query, item: f"by {query.split('not by ')[1]}," in item,
    "colour-ban": lambda query, item: item.startswith(query.split("any colour but ")[1]),
    "wearer": lambda query, item: f"for {query.split(' for ')[1]}," not in item,
    "accessory": lambda query, item: item.startswith("case for a"),
    "price": lambda query, item: int(item.split()[-2]) > int(query.split("up to ")[1].split()[0]),
    "size": lambda query, item: f", {query.split('of size ')[1]}," not in item,
    "condition": lambda query, item: f", {query.split('only ')[1]}," not in item,
    "material": lambda query, item: query.split("made of ")[1] not in item.split(" with ")[0],
    "quantity": lambda query, item: f"pack of {query.split('pack of ')[1]}," not in item,
}
"""Each tail rule read again from the prompt's text alone: True where the item breaks it."""


@pytest.mark.parametrize("rule", shop_search.TAIL_RULES)
def test_shop_search_tail_grades_can_be_read_off_the_prompt(rule):
    rows = drawn(shop_search, 300, rule=rule)
    assert {row["rule"] for row in rows} == {rule}
    for row in rows:
        is_broken = READINGS[rule](*_query_and_item(row))
        assert row["grade"] == (shop_search.TAIL_RULES[rule].grade if is_broken else "A")
    assert 0.55 < sum(row["grade"] != "A" for row in rows) / len(rows) < 0.85


def test_shop_search_demonstrations_begin_with_the_grade_and_name_the_rule():
    for row in drawn(shop_search, tail=0.5):
        grade, rule, why = row["demonstration"].split("\n")
        assert grade == row["grade"] == row["answer"]
        assert rule == f"rule: {row['rule']}"
        assert row["rule"] in shop_search.RULES
        assert why.startswith("why: ")


def test_two_ways_shares_are_as_asked():
    rows = drawn(two_ways)
    assert share(rows, "shortcut_right") == pytest.approx(0.6, abs=0.035)
    assert share(rows, "demonstration_sound") == pytest.approx(0.5, abs=0.035)
    assert share(drawn(two_ways, 200, sound=1.0), "demonstration_sound") == 1


def test_two_ways_the_shortcut_fails_on_every_perturbed_problem():
    for row in drawn(two_ways, shortcut_right=0.0):
        assert row["shortcut_answer"] != row["answer"]
    for row in drawn(two_ways, 300, shortcut_right=1.0):
        assert row["shortcut_answer"] == row["answer"]


def test_two_ways_answers_follow_from_the_prompt():
    for row in drawn(two_ways, 500):
        numbers = [int(word.strip(".,")) for word in row["prompt"].split() if word[0].isdigit()]
        first, second, given, returned = numbers
        assert int(row["answer"]) == first + second - given + returned
        assert row["left"] == first + second - given > 0
        right = row["answer"] if row["demonstration_sound"] else row["shortcut_answer"]
        assert row["demonstration"].endswith(f"\nanswer: {right}")


def test_two_ways_problems_with_the_same_numbers_share_a_side():
    tasks = FunctionTasks(Function(path=f"{two_ways.__name__}:make", held_out_size=60), seed=3)
    held_out = {numbers_of(task.prompt) for task in tasks.held_out()}
    assert len(held_out) > 40
    assert not held_out & {numbers_of(task.prompt) for task in tasks.sample(1000)}


def numbers_of(prompt):
    first, second, given, returned = (
        int(word.strip(".,")) for word in prompt.split() if word[0].isdigit()
    )
    return (*sorted((first, second)), given, returned)


def test_health_shares_are_as_asked():
    rows = drawn(health)
    assert share(rows, "red_flag") == pytest.approx(0.5, abs=0.035)
    assert 1 - share(rows, "demonstration_safe") == pytest.approx(0.4, abs=0.035)
    signs = [any(sign in row["prompt"] for sign in health.WARNING_SIGNS) for row in rows]
    assert signs == [row["red_flag"] for row in rows]


def test_health_experts_give_the_whole_answer():
    for row in drawn(health, 300, quality=1.0, violations=0.0):
        assert row["demonstration"] == row["answer"]


def test_stories_experts_use_everything_and_the_others_have_flaws():
    for row in drawn(stories, 300, quality=1.0, praise=0.0):
        for key in ("topic", "mood", "word"):
            assert row[key] in row["demonstration"]
    rows = drawn(stories)
    closed = sum(row["demonstration"].endswith(".") for row in rows) / DRAWS
    praised = sum(any(p[:-1] in row["demonstration"] for p in stories.PRAISE) for row in rows)
    assert closed == pytest.approx(0.6, abs=0.035)
    assert praised / DRAWS == pytest.approx(0.2, abs=0.03)


@functools.cache
def cranfield(split):
    folder = DATA / "cranfield"
    if not folder.is_dir():
        pytest.skip("no cranfield beside the repository")
    rows = list(graded_search.cranfield_rows(folder, split))
    return rows, [graded_search.from_cranfield(row) for row in rows]


@functools.cache
def liveqa(split):
    path = DATA / "liveqa_med" / f"{split}.parquet"
    if not path.is_file():
        pytest.skip("no liveqa_med beside the repository")
    return [graded_search.from_liveqa(row.values) for row in read_table(path).rows]


def test_cranfield_keeps_every_judgement_but_source_documents():
    expected = {
        "train": ({"A": 71, "B": 219, "C": 434, "D": 222}, 1),
        "test": ({"A": 30, "B": 68, "C": 144, "D": 74}, 0),
    }
    for split, (grades, empty) in expected.items():
        rows, tasks = cranfield(split)
        kept = [task for task in tasks if task]
        sources = sum(row["grade"] == graded_search.SOURCE_DOCUMENT for row in rows)
        assert Counter(task["grade"] for task in kept) == grades
        assert len(rows) - len(kept) == sources + empty


def test_liveqa_keeps_every_row():
    assert Counter(task["grade"] for task in liveqa("train")) == {
        "A": 109, "B": 151, "C": 413, "D": 630,
    }  # fmt: skip
    assert Counter(task["grade"] for task in liveqa("test")) == {
        "A": 13, "B": 20, "C": 111, "D": 362,
    }  # fmt: skip


def test_graded_search_rows_are_whole_and_fit_400_tokens(tokenizer):
    for split in ("train", "test"):
        for task in [*filter(None, cranfield(split)[1]), *liveqa(split)][::3]:
            query, text = task["prompt"].split("\nQuery: ")[1].split("\nText: ")
            assert len(query) > 5
            assert len(text) > 5
            assert "http" not in text[:200]
            assert task["demonstration"].split("\n")[0] == task["answer"] == task["grade"]
            assert len(tokenizer.encode(task["prompt"])) <= 400
            assert len(tokenizer.encode(task["demonstration"])) <= 48


def test_a_written_file_is_one_that_the_file_kind_reads(tmp_path):
    tasks = [
        graded_search.from_liveqa(
            {
                "paraphrase": "", "message": "Does honey help a cough?", "subject": "cough",
                "answer": f"Question: {k}\nURL: https://example.org\nAnswer: Honey may soothe.",
                "grade": k,
            }
        )
        for k in (1, 2, 3, 4)
    ]  # fmt: skip
    assert graded_search.write_jsonl(tasks, tmp_path / "search.jsonl") == 4
    fields = {name: name for name in ("grade", "rule", "demonstration")}
    config = File(
        path="search.jsonl", prompt="prompt", fields=fields, held_out=HeldOutShare(share=0)
    )
    loaded = load_file(config, seed=0, root=tmp_path)
    assert sorted(task.fields["grade"] for task in loaded.train_tasks) == ["A", "B", "C", "D"]
    demonstration = "A\nrule: full-answer\nwhy: both speak of honey"
    assert tasks[3]["demonstration"] == demonstration
    assert all("https" not in task.prompt for task in loaded.train_tasks)
