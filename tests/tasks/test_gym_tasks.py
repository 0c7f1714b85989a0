"""reasoning-gym as tasks and as a reward."""

import functools
import time
from importlib import import_module

import anyio
import msgspec
import pytest

from burnish.errors import RewardError, UserError
from burnish.records import Response, Status, Task
from burnish.rewards.function import from_function
from burnish.rewards.scorer import checked
from burnish.tasks import GymTasks, ReasoningGym, TaskSet, gym_score
from burnish.tasks.gym import GRAMMARS, OWN_TEXT, _answer_in, _refusal, _registered, _scored

pytest.importorskip("reasoning_gym")


def make(dataset="leg_counting", seed=0, **settings):
    given = {"train_size": 60, "held_out_size": 20}
    return GymTasks(ReasoningGym(dataset=dataset, **{**given, **settings}), seed)


def through_json(task):
    return msgspec.json.decode(msgspec.json.encode(task), type=Task)


@pytest.mark.parametrize(
    "dataset",
    ["leg_counting", "arc_agi", "countdown", "knights_knaves", "n_queens", "coin_flip",
     "polynomial_multiplication", "spiral_matrix", "string_insertion", "binary_matrix", "puzzle24"],
)  # fmt: skip
def test_right_answers_score_one_even_after_json(dataset):
    for task in map(through_json, make(dataset, held_out_size=2).sample(3)):
        entry, answer = task.fields["entry"], task.fields["answer"]
        assert gym_score(answer, entry) == 1.0
        assert gym_score(f"Let me see. <answer> {answer} </answer>", entry) == 1.0
        assert gym_score("I do not know", entry) < 0.1


def test_tasks_are_repeatable_and_held_out_does_not_follow_the_seed():
    one, again, other = make(seed=1), make(seed=1), make(seed=2)
    assert isinstance(one, TaskSet)
    assert one.sample(20) == again.sample(20)
    assert one.sample(20) != other.sample(20)
    assert one.held_out() == other.held_out()
    assert set(one.train(0).fields) == one.fields
    assert one.train(0).for_judge().fields == {"question": one.train(0).fields["question"]}


def test_small_spaces_are_deduplicated_by_content():
    tasks = make("coin_flip", options={"min_trials": 3, "max_trials": 4}, held_out_size=10)
    held_out = [task.fields["question"] for task in tasks.held_out()]
    assert len(set(held_out)) == len(held_out) < 10
    trained = [tasks.train(index) for index in range(120)]
    assert not {task.fields["question"] for task in trained} & set(held_out)
    assert len({task.id for task in trained}) == 120


def test_fingerprint_follows_settings_and_not_the_seed():
    assert make(seed=1).fingerprint == make(seed=2).fingerprint
    assert make(data_seed=1).fingerprint != make().fingerprint
    assert make(options={"max_animals": 4}).fingerprint != make().fingerprint


def test_instruction_and_system():
    task = make(instruction="Use <answer> tags.", system="Be brief.").train(0)
    assert [m.role for m in task.messages] == ["system", "user"]
    assert task.prompt == f"{task.fields['question'].rstrip()}\nUse <answer> tags."


ATTACKS = [
    "__import__('os').system('true')", "().__class__", "9**9**9**9", "9* *9", "(9**99)**99",
    "[x for x in [1,2] for y in [1,2]]", "exit()", "f'{1}'", "99999999!", "lambda: 1",
]  # fmt: skip


@functools.cache
def one_entry(dataset):
    """The first item of a dataset; some take a third of a second to make."""
    return make(dataset, held_out_size=1, train_size=1).train(0).fields["entry"]


@pytest.mark.parametrize("dataset", sorted(GRAMMARS))
@pytest.mark.parametrize("attack", ATTACKS)
def test_text_that_could_run_never_reaches_a_scorer_that_evaluates_it(dataset, attack):
    assert not GRAMMARS[dataset].fullmatch(attack)
    assert gym_score(attack, one_entry(dataset)) == 0.0


def test_a_huge_exponent_does_not_stall_a_scorer_that_makes_fractions():
    entry = make("coin_flip").train(0).fields["entry"]
    assert gym_score("1e999999999", entry) == 0.0


def test_every_scorer_that_evaluates_text_has_a_grammar_or_is_refused():
    from reasoning_gym.factory import DATASETS

    refused = {name for name, (kind, _) in DATASETS.items() if _refusal(name, kind)}
    assert refused == {"simple_integration", "intermediate_integration", "codeio"}
    evaluating = {name for name in GRAMMARS if name != "coin_flip"}
    assert all(_refusal("not a known name", DATASETS[name][0]) for name in evaluating | OWN_TEXT)


def test_a_scorer_whose_helper_evaluates_the_response_is_refused(tmp_path, monkeypatch):
    source = """
def read(text):
    return eval(text)

class Dataset:
    def score_answer(self, answer, entry):
        return float(read(answer) == 1)
"""
    (tmp_path / "sly_scorer.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    assert "evaluates the response as code" in _refusal("sly", import_module("sly_scorer").Dataset)


def test_refused_scorers_warn_before_training():
    tasks = make("simple_integration")
    assert "gym_score will refuse" in tasks.notes[0]
    with pytest.raises(RewardError, match="evaluates the response as code"):
        gym_score("x", tasks.train(0).fields["entry"])


@pytest.mark.parametrize(
    ("dataset", "response"),
    [
        ("prime_factorization", "not a number"), ("prime_factorization", "2 * 3"),
        ("game_of_life", '{"a": 1}'), ("boxnet", "[1, 2, 3]"), ("boxnet", "12"),
        ("boxnet", '[{"Agent[0.5, 0.5]": 3}]'),
        ("boxnet", '[{"Agent": "move(box_red, square[0.5, 1.5])"}]'),
    ],
)  # fmt: skip
def test_a_response_in_another_form_than_asked_for_scores_zero(dataset, response):
    entry = make(dataset, train_size=1, held_out_size=0).train(0).fields["entry"]
    assert gym_score(response, entry) == 0.0


def test_a_scorer_that_breaks_is_no_score():

    class Broken:
        def score_answer(self, answer, entry):
            raise KeyError("bug")

    class Endless:
        def score_answer(self, answer, entry):
            return float("inf")

    class BreaksOnWrong:
        def score_answer(self, answer, entry):
            return 1.0 if answer == entry["answer"] else entry["metadata"]

    with pytest.raises(KeyError, match="bug"):
        _scored("any", Broken(), "x", {"answer": "1"})
    with pytest.raises(KeyError, match="bug"):
        _scored("prime_factorization", Broken(), "2 × 3", {"answer": "1"})
    with pytest.raises(KeyError, match="metadata"):
        _scored("any", BreaksOnWrong(), "x", {"answer": "1"})
    assert _scored("any", Endless(), "x", {"answer": "1"}) is None


def test_a_scorer_that_raises_becomes_reward_error_at_the_gate(monkeypatch):
    task = make().train(0)
    kind, _ = _registered("leg_counting")
    monkeypatch.setattr(kind, "score_answer", lambda self, answer, entry: entry["missing"])
    scorer = from_function(gym_score)
    (reward,) = anyio.run(checked, scorer, task, [Response("r", "wrong")])
    assert (reward.value, reward.status) == (None, Status.REWARD_ERROR)
    assert "KeyError" in reward.reason


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (" 7 ", "7"), ("<answer> 7 </answer>", "7"),
        ("<answer>1</answer> no, <answer>2\n3</answer>.", "2\n3"),
        ("<answer>1</answer> or <answer>2", "1"), ("<answer>1</answer> and </answer>", "1"),
        ("<answer>a<answer>b</answer>", "b"), ("</answer>x<answer>", "</answer>x<answer>"),
        ("x</answer>", "x</answer>"), ("<answer></answer>", ""),
    ],
)  # fmt: skip
def test_the_last_answer_counts(text, answer):
    assert _answer_in(text) == answer


def test_long_responses_take_no_time():
    entry = make("prime_factorization").train(0).fields["entry"]
    began = time.process_time()
    assert gym_score("7" * 100_000 + "x", entry) == gym_score("7 × " * 50_000 + "x", entry) == 0.0
    assert _answer_in("<answer>" * 200_000).startswith("<answer>")
    assert _answer_in("<answer>" * 200_000 + "7</answer>" * 2) == "7"
    # A tenth of a second; work that grows with the square of the length would take minutes.
    assert time.process_time() - began < 10


def test_an_item_that_is_no_longer_the_question_is_an_error():
    entry = {**make().train(0).fields["entry"], "question": "other"}
    with pytest.raises(RewardError, match="asks another question now"):
        gym_score("1", entry)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dataset": "leg_countin"}, "no dataset 'leg_countin'. Did you mean 'leg_counting'?"),
        ({"dataset": "list_functions"}, "other items for the same seed"),
        ({"dataset": "codeio"}, "runs code that a model wrote"),
        ({"dataset": "composite"}, "use one task set for each"),
        ({"options": {"max_animal": 3}}, "options: got 'max_animal', expected some of max_animals"),
        ({"options": {"max_animals": -3}}, "refuses options {'max_animals': -3}: max_animals must"),
    ],
)
def test_settings_that_cannot_work(settings, message):
    with pytest.raises(UserError) as caught:
        make(**settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
