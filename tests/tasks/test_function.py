"""Tasks from a user's own function: repeatable, split by content, and one line for every misuse."""

import textwrap
import tomllib

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from burnish.errors import UserError
from burnish.tasks import Function, FunctionTasks, TaskConfig, TaskSet, build

SUMS = """
    def make(rng, top=30):
        a, b = rng.randrange(top), rng.randrange(top)
        return {
            "prompt": f"{a} + {b} =",
            "answer": a + b,
            "terms": (a, b),
            "demonstration": f"{a + b}.",
        }
"""


@pytest.fixture
def sums(tmp_path):
    return written(tmp_path, SUMS)


def written(folder, text, name="my_tasks.py"):
    (folder / name).write_text(textwrap.dedent(text))
    return folder


def tasks_of(folder, seed=0, path="my_tasks.py:make", **chosen):
    return FunctionTasks(Function(path=path, **chosen), seed, folder)


def refused(folder, text, **chosen):
    with pytest.raises(UserError) as caught:
        tasks_of(written(folder, text), **chosen)
    message = str(caught.value)
    assert "\n" not in message
    assert "tasks 'my_tasks' (my_tasks.py:make)" in message
    return message


def test_from_toml_to_tasks(sums):
    text = 'kind = "function"\npath = "my_tasks.py:make"\noptions = { top = 5 }'
    tasks = build(msgspec.convert(tomllib.loads(text), TaskConfig), seed=3, root=sums)
    assert isinstance(tasks, TaskSet)
    assert tasks.name == "my_tasks"
    assert tasks.train_size is None
    for task in tasks.sample(50):
        a, b = task.fields["terms"]
        assert max(a, b) < 5
        assert task.prompt == f"{a} + {b} ="
        assert task.fields["answer"] == a + b
        assert set(task.fields) == tasks.fields == {"answer", "terms", "demonstration"}
        assert task.for_judge().fields == {}
        assert msgspec.json.decode(msgspec.json.encode(task), type=type(task)) == task


def test_a_module_by_name():
    path = "recipes.gd2po.tool_calls:make"
    tasks = FunctionTasks(Function(path=path), seed=0)
    assert tasks.name == "tool_calls"
    assert "Tools:" in tasks.train(0).prompt


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**62), indices=st.lists(st.integers(0, 10**12), min_size=1, max_size=5))
def test_a_task_depends_on_seed_and_index_alone(tmp_path_factory, seed, indices):
    folder = written(tmp_path_factory.mktemp("f"), SUMS)
    wide = {"options": {"top": 1000}, "held_out_size": 5}
    tasks, again = tasks_of(folder, seed, **wide), tasks_of(folder, seed, **wide)
    forward = [tasks.train(index) for index in indices]
    again.held_out()
    backward = [again.train(index) for index in reversed(indices)]
    assert forward == backward[::-1]


def test_no_held_out_question_is_ever_trained(sums):
    tasks = tasks_of(sums, options={"top": 12}, held_out_share=0.3)
    held_out = {task.prompt for task in tasks.held_out()}
    trained = {task.prompt for task in tasks.sample(1500)}
    assert not trained & held_out
    assert trained | held_out == {f"{a} + {b} =" for a in range(12) for b in range(12)}
    assert 0.2 < len(held_out) / 144 < 0.4


def test_held_out_is_the_same_for_every_seed_and_limits_are_prefixes(sums):
    one, other = tasks_of(sums, seed=1), tasks_of(sums, seed=2)
    assert one.held_out() == other.held_out()
    assert len({task.id for task in one.held_out()}) == len(one.held_out()) > 100
    assert one.held_out(7) == one.held_out()[:7]
    assert one.sample(20) != other.sample(20)
    assert len(tasks_of(sums, held_out_size=9).held_out()) == 9
    assert tasks_of(sums, held_out_share=0.0).held_out() == []


def test_questions_that_share_split_by_share_a_side(tmp_path):
    written(
        tmp_path,
        """
        def make(rng):
            city = f"city {rng.randrange(200)}"
            words = rng.choice(["Where is", "Find", "Show me"])
            return {"prompt": f"{words} {city}", "city": city, "split_by": city}
    """,
    )
    tasks = tasks_of(tmp_path)
    held_out = {task.fields["city"] for task in tasks.held_out()}
    assert tasks.fields == {"city"}
    assert 20 < len(held_out) < 60
    assert not held_out & {task.fields["city"] for task in tasks.sample(2000)}


def test_conversations_and_the_system_message(tmp_path):
    written(
        tmp_path,
        """
        def make(rng):
            asked = {"role": "user", "content": f"number {rng.random()}"}
            return {"messages": [{"role": "system", "content": "theirs"}, asked], "answer": None}
    """,
    )
    plain = tasks_of(tmp_path).train(0)
    assert [(m.role, m.content[:6]) for m in plain.messages] == [
        ("system", "theirs"),
        ("user", "number"),
    ]
    assert plain.fields == {"answer": None}
    told = tasks_of(tmp_path, system="ours").train(0)
    assert [m.content[:6] for m in told.messages] == ["ours", "number"]


def test_fingerprint_follows_the_text_and_the_options(sums, tmp_path):
    first = tasks_of(sums).fingerprint
    assert tasks_of(sums, seed=9).fingerprint == first
    assert tasks_of(sums, options={"top": 31}).fingerprint != first
    assert tasks_of(sums, held_out_share=0.3).fingerprint != first
    (tmp_path / "moved").mkdir()
    assert tasks_of(written(tmp_path / "moved", SUMS)).fingerprint == first
    written(tmp_path, SUMS.replace("a + b}.", "a + b}!"))
    assert tasks_of(tmp_path).fingerprint != first


def test_fingerprint_follows_a_function_that_is_imported(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    written(tmp_path, SUMS, "burnish_test_inner.py")
    written(tmp_path, "from burnish_test_inner import make")
    before = tasks_of(tmp_path).fingerprint
    written(tmp_path, SUMS + "    # changed\n", "burnish_test_inner.py")
    assert tasks_of(tmp_path).fingerprint != before


def test_labels(sums):
    assert set(tasks_of(sums).train(0).labels) == {"answer", "terms", "demonstration"}
    shown = tasks_of(sums, labels=("answer",)).train(0).for_judge().fields
    assert set(shown) == {"terms", "demonstration"}
    with pytest.raises(UserError, match=r"labels: no field 'anser'.*Did you mean 'answer'\?"):
        tasks_of(sums, labels=("anser",))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 'What?'", "got 'What?', expected a dict with text keys"),
        ("return {'answer': 1}", "one of 'prompt' and 'messages', got the keys answer"),
        ("return {'prompt': 'a', 'messages': []}", "one of 'prompt' and 'messages', got"),
        ("return {'prompt': 3}", "prompt: got 3, expected a text that is not empty"),
        ("return {'prompt': ' '}", "no user message with text"),
        ("return {'messages': [{'role': 'user'}]}", "missing required field `content`"),
        ("return {'messages': 'hello'}", "messages: got 'hello', expected a list, each a Message"),
        ("return {'messages': [{'role': 'system', 'content': 'x'}]}", "no user message with text"),
        (
            "return {'prompt': 'a', 'answer': {1, 2}}",
            "field 'answer': got {1, 2}, expected text, a number",
        ),
        ("return {'prompt': 'a', 'answer': [float('nan')]}", "field 'answer': got nan, expected"),
        ("return {'prompt': 'a', 'answer': {1: 2}}", "field 'answer': got {1: 2}, expected"),
        ("return {'prompt': 'a', 'answer': 2**63}", "field 'answer': got 9223372036854775808"),
        ("return {'prompt': 'a', 3: 2}", "expected a dict with text keys"),
        ("return {'prompt': 'a', 'split_by': 2}", "split_by: got 2, expected a text or none"),
        ("return {'prompt': 'a'}[rng]", "raised KeyError"),
        ("raise ValueError('no\\nluck')", "raised ValueError: no luck (my_tasks.py:2 in make)"),
    ],
)
def test_what_a_function_must_return(tmp_path, body, message):
    assert message in refused(tmp_path, f"def make(rng):\n    {body}\n")


def test_a_function_that_does_not_repeat_itself_is_refused(tmp_path):
    text = "import random\ndef make(rng):\n    return {'prompt': f'q {random.random()}'}\n"
    assert "another question from the same rng" in refused(tmp_path, text)


def test_too_few_different_questions(tmp_path):
    one = "def make(rng):\n    return {'prompt': 'one question', 'answer': 1}\n"
    message = refused(tmp_path, one)
    assert "none of 2,000 draws is held out" in message
    assert "raise held_out_share (now 0.2; 0 holds nothing out)" in message
    assert tasks_of(tmp_path, held_out_share=0.0).train(5).prompt == "one question"
    always_held_out = one.replace("one question", "the only question")
    assert "2,000 draws are held out" in refused(tmp_path, always_held_out)


def test_options_are_checked_against_the_function(sums):
    with pytest.raises(
        UserError, match=r"unexpected keyword argument 'tap'.*takes, by task.options, top"
    ):
        tasks_of(sums, options={"tap": 3})
    written(sums, "def make(rng, top):\n    return {'prompt': str(rng.random() * top)}\n")
    with pytest.raises(UserError, match="missing a required argument: 'top'"):
        tasks_of(sums)


def test_options_are_read_as_the_function_annotates_them(tmp_path):
    written(
        tmp_path,
        """
        import random
        from typing import Literal
        from burnish.boundary import Share

        def make(rng: random.Random, easy: Share = 0.5, kind: Literal["a", "b"] = "a", other: "No" = 1):
            return {"prompt": f"{kind} {rng.random() * easy}"}
    """,
    )
    with pytest.raises(
        UserError, match=r"task option easy: got 1.5, expected a number from 0 to 1"
    ):
        tasks_of(tmp_path, options={"easy": 1.5})
    assert tasks_of(tmp_path, options={"easy": 1, "other": 7}).train(0).prompt.startswith("a ")
