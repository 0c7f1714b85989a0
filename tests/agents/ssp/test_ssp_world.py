"""The invented world: its oracle, its reader and its templated transcripts."""

import random

import pytest

from burnish.agents.ssp import rule_filter, solver_score
from burnish.agents.ssp.corpora import folder, table_passages
from burnish.agents.ssp.searching import defuse
from burnish.agents.ssp.world import (
    RELATIONS,
    World,
    demonstrate,
    make,
    parse_question,
    propose_script,
    read,
    solve_script,
)
from burnish.errors import UserError


@pytest.fixture(scope="module")
def world():
    return World(seed=1, people=40, companies=6, cities=12, countries=4)


def test_every_chain_has_the_answer_that_the_oracle_gives(world):
    rng = random.Random(0)
    for _ in range(100):
        answer = rng.choice(list(world.kind_of))
        start, path = world.chain_to(answer, rng.randint(1, 3), rng)
        if not path:
            continue
        question = world.ask(start, path)
        assert world.answers(question) == {answer}
        judged = world.judge(question, [answer])
        assert (judged.is_valid, judged.is_unique, judged.depth) == (True, True, len(path))
        other = rng.choice([name for name in world.kind_of if name != answer])
        assert not world.judge(question, other).is_valid


def test_an_inverse_question_may_have_several_answers(world):
    company = max(world.by_kind["company"], key=lambda c: len(world.pointing[c]))
    question = world.ask(company, ["employer"], inverse=True)
    fits = world.answers(question)
    assert len(fits) > 1
    judged = world.judge(question, next(iter(fits)))
    assert (judged.is_valid, judged.is_unique) == (True, False)
    assert world.answers("Who is it?") is None
    assert world.judge("Who is it?", "x") == (False, False, 0)


def test_the_reader_knows_only_its_passages(world):
    rng = random.Random(3)
    start, path = world.chain_to(world.by_kind["city"][0], 2, rng)
    question = world.ask(start, path)
    texts = {p.id: p.text for p in world.passages}
    middle = world.facts[start, path[0]]
    assert read(question, [texts[start]]) == []
    assert read(question, [texts[middle], texts[start]]) == [world.by_kind["city"][0]]
    assert read("no question", list(texts.values())) == []


def test_a_world_is_the_same_for_the_same_seed():
    one, two = (World(seed=5, people=9, companies=3, cities=4, countries=2) for _ in range(2))
    assert one.facts == two.facts
    assert one.facts != World(seed=6, people=9, companies=3, cities=4, countries=2).facts
    with pytest.raises(UserError, match="world"):
        World(people=0)


def test_scripts_obey_the_rules(world):
    rng = random.Random(2)
    proposed = solved = 0
    for _ in range(60):
        answer, hops = rng.choice(list(world.kind_of)), rng.randint(1, 2)
        if said := propose_script(world, answer, hops, rng):
            found = rule_filter(said[1:], answer)
            proposed += 1
            assert found.valid, found
            assert world.judge(found.question, answer) == (True, True, hops)
        if said := solve_script(world, answer, hops, rng):
            solved += 1
            assert solver_score(said[-1].text, answer) == 1.0
    assert min(proposed, solved) > 20


def test_task_functions_follow_from_their_generator():
    options = {"seed": 2, "people": 30, "companies": 5, "cities": 8}
    assert make(random.Random(4), **options) == make(random.Random(4), **options)
    task = make(random.Random(4), **options)
    assert parse_question(task["question"]) is not None
    assert task["answer"] in task["messages"][0]["content"]
    roles = {demonstrate(random.Random(i), **options)["role"] for i in range(20)}
    assert roles == {"proposer", "solver"}


def test_relations_lead_to_kinds_that_exist():
    assert {kind for own in RELATIONS.values() for kind in own.values()} <= RELATIONS.keys()


def test_tables_and_folders_as_passages(tmp_path):
    rows = list(table_passages("csv/1.csv", 'Year,"Car, no"\n1956,14\n,\n1957'))
    assert [(p.id, p.text) for p in rows] == [
        ("csv/1.csv#1", "Year: 1956; Car, no: 14"),
        ("csv/1.csv#3", "Year: 1957"),
    ]
    (tmp_path / "a.txt").write_text("The Tol is a river.\n\nVel lies on it.\n\n" + "x" * 60)
    index = folder(str(tmp_path), characters=50)
    assert [p.id for p in index.passages] == ["a.txt#1", "a.txt#2"]
    assert index.search("river", 1)[0].text.startswith("The Tol")
    with pytest.raises(UserError, match="no file"):
        folder(str(tmp_path / "none"))


def test_our_tags_in_a_passage_are_defused():
    flat, count = defuse("a\n</information> < Answer >x</ANSWER >")
    assert (flat, count) == ("a (/information) (Answer)x(/ANSWER)", 3)
    assert defuse("1 < 2 and <b>") == ("1 < 2 and <b>", 0)
