"""Items are judged once, kept on disk, and compared in pairs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import anyio
import pytest
from bench_cases import Planted, pairs, said

from burnish.bench.comparison import compare_judges
from burnish.bench.items import Item, Judged, message, oracle_share, responses_of
from burnish.bench.judge_results import by_instruction, point_score, with_answers
from burnish.bench.judging import ResultFile, judge_items, read_results
from burnish.bench.loaders.reading import read_items
from burnish.errors import RewardError, UserError
from burnish.records import Evidence, Response, Reward, Status, Task, Verdict, Visibility
from burnish.rewards import from_function
from burnish.rewards.scorer import Scope


class Counting(Planted):
    """Counts how often it is asked."""

    fingerprint = "counting"
    calls = 0

    async def score(self, task: Task, responses: list[Response]) -> list[Reward]:
        self.calls += 1
        return await super().score(task, responses)


def judged_on(path: Path, judge: Counting, items: list[Item]) -> list[Judged]:
    async def work() -> list[Judged]:
        with ResultFile(path) as file:
            return await judge_items(judge, items, judge="j", file=file)

    return anyio.run(work)


def test_rows_on_file_are_not_asked_again(tmp_path):
    path, judge, items = tmp_path / "out.jsonl", Counting(), pairs(6)
    first = judged_on(path, judge, items[:4])
    assert judge.calls == 4
    path.write_bytes(path.read_bytes()[:-20])  # a kill in the middle of the last line
    second = judged_on(path, judge, items)
    assert judge.calls == 4 + 3
    assert second[:3] == first[:3]
    assert [one.id for one in read_results(path)] == [item.id for item in items]
    judged_on(path, judge, items)
    assert judge.calls == 7


def test_what_failed_outside_is_asked_again_and_counted_once(tmp_path):
    class Flaky(Counting):
        async def score(self, task: Task, responses: list[Response]) -> list[Reward]:
            rewards = await super().score(task, responses)
            if self.calls == 1:
                return [Reward.failed("x", Status.INFRA_ERROR, "down") for _ in rewards]
            return rewards

    path, judge = tmp_path / "out.jsonl", Flaky()
    (first,) = judged_on(path, judge, pairs(1))
    assert (first.choice, first.status, first.reason) == (None, Status.INFRA_ERROR, "down")
    judged_on(path, judge, pairs(1))
    assert judge.calls == 2
    (kept,) = read_results(path)
    assert kept.status is Status.OK


def test_another_text_or_judge_is_another_question(tmp_path):
    path, judge = tmp_path / "out.jsonl", Counting()
    judged_on(path, judge, pairs(1, seed=0))
    judged_on(path, judge, pairs(1, seed=1))
    assert judge.calls == 2


def test_what_the_judge_sees_is_part_of_the_question(tmp_path):
    def rubric(text: str, answer: str = "") -> Item:
        return Item("i", message("q"), responses_of("i", ["x"]), (0,),
                    shown={"criteria": text}, hidden={"answer": answer})  # fmt: skip

    class ByCriteria:
        name, scope, needs, fingerprint = "c", Scope.POINT, frozenset[str](), "c"

        async def score(self, task: Task, responses: list[Response]) -> list[Reward]:
            calls.append(dict(task.fields))
            return [Reward("c", float(task.fields["criteria"] == r.text)) for r in responses]

    calls: list[dict] = []
    scorer = ByCriteria()

    def judged(item: Item, path: Path, oracle: bool = False) -> Judged:
        async def work() -> list[Judged]:
            with ResultFile(path) as file:
                return await judge_items(scorer, [item], judge="c", file=file, oracle=oracle)

        return anyio.run(work)[0]

    plain = tmp_path / "plain.jsonl"
    assert judged(rubric("x"), plain).values == (1.0,)
    assert judged(rubric("y"), plain).values == (0.0,)
    judged(rubric("y", answer="other"), plain)  # hidden, so it is the same question
    assert len(calls) == 2
    told = tmp_path / "told.jsonl"
    for answer in ("7", "7", "8"):
        judged(rubric("x", answer), told, oracle=True)
    assert [call.get("answer") for call in calls] == [None, None, "7", "8"]


def test_a_corrected_label_is_taken_without_asking_again(tmp_path):
    path, judge = tmp_path / "out.jsonl", Counting()
    (item,) = pairs(1)
    (old,) = judged_on(path, judge, [item])
    other = (1,) if item.best == (0,) else (0,)
    changed = dataclasses.replace(item, best=other, subset="new", info={"style": "plain"})
    (new,) = judged_on(path, judge, [changed])
    assert judge.calls == 1
    assert (new.choice, new.best, new.subset, new.info) == (
        old.choice, other, "new", {"style": "plain"},
    )  # fmt: skip
    assert read_results(path) == [new]
    judged_on(path, judge, [changed])
    assert len(path.read_text().splitlines()) == 2


def test_one_file_holds_one_setting_of_a_judge(tmp_path):
    class OtherSettings(Counting):
        fingerprint = "one order"

    path, other = tmp_path / "out.jsonl", tmp_path / "other.jsonl"
    judged_on(path, Counting(), pairs(2))
    with pytest.raises(UserError, match="'j' had other settings; give"):
        judged_on(path, OtherSettings(), pairs(2))
    assert len(path.read_text().splitlines()) == 2
    judged_on(other, OtherSettings(), pairs(2))
    both = tmp_path / "both.jsonl"
    both.write_text(path.read_text() + other.read_text())
    with pytest.raises(UserError, match="'j' with different settings"):
        read_results(both)


def test_a_pair_judge_that_contradicts_itself_is_refused():
    class Both:
        name, scope, needs = "both", Scope.PAIR, frozenset[str]()

        async def score(self, task: Task, responses: list[Response]) -> list[Reward]:
            return [Reward("both", 1.0) for _ in responses]

    for count in (2, 3):
        item = Item("n", message("q"), responses_of("n", list("abc")[:count]))
        with pytest.raises(RewardError, match="expected v and -v"):
            anyio.run(lambda item=item: judge_items(Both(), [item], judge="j"))


def test_a_pair_judge_lets_several_responses_meet():
    class Longer:
        name, scope, needs = "longer", Scope.PAIR, frozenset[str]()

        async def score(self, task: Task, responses: list[Response]) -> list[Reward]:
            a, b = (len(r.text) for r in responses)
            return [
                Reward("longer", float(a > b) - float(a < b)),
                Reward("longer", float(b > a) - float(b < a)),
            ]

    item = Item("n", message("q"), responses_of("n", ["aa", "a", "aaaa", "aaa"]), (2,))
    (one,) = anyio.run(lambda: judge_items(Longer(), [item], judge="longer"))
    assert one.choice == (2,)
    assert one.values == pytest.approx((-1 / 3, -1, 1, 1 / 3))
    assert one.credit == 1


def test_oracle_fields_come_only_when_asked_for_and_are_counted():
    seen: list[dict] = []

    def peek(task: Task) -> Reward:
        seen.append(dict(task.fields))
        visibility = Visibility.ORACLE if task.fields else Visibility.VISIBLE
        return Reward("peek", 1.0, evidence=(Evidence("x", "y", visibility),))

    scorer = from_function(peek, "peek")
    item = Item("n", message("q"), responses_of("n", ["x"]), hidden={"reference": "42"})
    plain = anyio.run(lambda: judge_items(scorer, [item], judge="j"))
    told = anyio.run(lambda: judge_items(scorer, [item], judge="j", oracle=True))
    assert seen == [{}, {"reference": "42"}]
    assert oracle_share(plain) == 0
    assert oracle_share(told) == 1
    failed = Judged("f", "j", values=(None,), status=Status.PARSE_ERROR, rewards=told[0].rewards)
    assert oracle_share([failed]) == 0


def rows(path: Path, *values: dict) -> Path:
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def test_every_form_of_row(tmp_path):
    path = rows(
        tmp_path / "r.jsonl",
        {"prompt": "p", "response": "x", "answer": "secret"},
        {"id": "two", "messages": [{"role": "user", "content": "m"}], "a": "x", "b": "y", "winner": "B"},
        {"question": "p", "chosen": "good", "rejected": "bad", "chosen_model": "m", "rejected_model": "n"},
        {"prompt": "p", "responses": ["x", {"text": "y"}, {"content": "z"}]},
        {"prompt": "p", "output_1": "x", "output_2": "y", "generator_1": "g", "generator_2": "h"},
        {"prompt": "p", "chosen": [{"role": "assistant", "content": "good"}], "rejected": "bad"},
    )  # fmt: skip
    items = read_items(path)
    assert items[0].hidden == {"answer": "secret"}
    assert items[0].task().fields == {}
    assert (items[1].id, items[1].best) == ("two", (1,))
    third = items[2]
    assert third.best is not None
    assert third.responses[third.best[0]].text == "good"
    assert third.authors[third.best[0]] == "m"
    assert [r.text for r in items[3].responses] == ["x", "y", "z"]
    assert items[4].authors == ("g", "h")
    assert {r.text for r in items[5].responses} == {"good", "bad"}
    assert not any(item.hidden for item in items[1:])


def test_two_judges_are_compared_item_by_item():
    a = [said(str(k), (0,) if k < 10 else (1,)) for k in range(30)]
    b = [said(str(k), (0,) if k < 25 else None) for k in range(31)]
    found = compare_judges(a, b, "A", "B")
    assert found.only_b == ["30"]
    assert found.test.fourfold == (10, 0, 15, 5)
    assert found.test.p_value == pytest.approx(2 * 0.5**15)
    assert found.verdict.startswith("B is right more often by 50.0 points")
    same = compare_judges(a, a)
    assert same.verdict.startswith("cannot be told apart")
    assert same.agreed == 1
    swapped = compare_judges(b, a)
    assert swapped.test.p_value == found.test.p_value
    assert swapped.test.difference.value == -found.test.difference.value


def test_results_on_other_data_are_not_compared():
    with pytest.raises(UserError, match="have no labelled item in common"):
        compare_judges([said("1", (0,))], [said("2", (0,))])
    with pytest.raises(UserError, match="different labels for item '1'"):
        compare_judges([said("1", (0,))], [said("1", (0,), best=(1,))])
    two = [said("1", (0,)), Judged("1", "other", choice=(0,), best=(0,))]
    with pytest.raises(UserError, match="has several judges; name FILE#JUDGE"):
        compare_judges(two, two)


def test_point_scores_leave_failures_out():
    judged = [
        Judged("1", "j", values=(1.0,), choice=(0,), subset="a"),
        Judged("2", "j", values=(0.0,), choice=(0,), subset="b"),
        Judged("3", "j", values=(None,), status=Status.TIMEOUT, subset="b"),
    ]
    found = point_score(judged)
    assert found.score is not None
    assert (found.score.value, found.score.size, found.failed) == (0.5, 2, 1)
    verdicts = (Verdict("no_comma", 1.0), Verdict("language", None))
    one = Judged("1", "j", rewards=(Reward("x", 1.0, verdicts=verdicts),))
    assert by_instruction([one]) == {"no_comma": (1, 1, 0), "language": (0, 0, 1)}


def test_rows_without_an_item_and_items_without_a_row_are_named(tmp_path, caplog):
    items = [Item(f"manual-{k}", message(f"p{k}"), ()) for k in range(3)]
    given = ({"id": "manual-1", "response": "x"}, {"id": "zzz", "response": "y"})
    assert len(with_answers(items, rows(tmp_path / "a.jsonl", *given))) == 1
    assert "of 1 row no item was found: ['zzz']" in caplog.text
    assert "2 of 3 items have no answer" in caplog.text


def test_answers_are_matched_by_id_or_prompt(tmp_path):
    items = [Item(str(k), message(f"p{k}"), ()) for k in range(3)]
    path = rows(
        tmp_path / "a.jsonl", {"key": 0, "response": "x"}, {"prompt": "p2", "response": "y"}
    )
    found = with_answers(items, path)
    assert [(item.id, item.responses[0].text) for item in found] == [("0", "x"), ("2", "y")]
    with pytest.raises(UserError, match="answers no item by id"):
        with_answers(items, rows(tmp_path / "b.jsonl", {"id": "zz", "response": "x"}))
