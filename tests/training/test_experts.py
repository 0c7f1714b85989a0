from collections import Counter

import msgspec
import pytest

from burnish.errors import UserError
from burnish.lm import load_model
from burnish.lm.tokenizer import Tokenizer, end_of_turn
from burnish.policy.answer_first import label_tokens
from burnish.records import Author, Finish, Message
from burnish.training.data import Experts
from expert_cases import Endless, finite, graded

TOKENIZER = load_model("tiny", device="cpu").tokenizer
RULES = ["common"] * 17 + ["odd"] * 2 + ["rare"]
TASKS = finite([graded(i, rule=rule, rules=[rule, "all"]) for i, rule in enumerate(RULES)])


def rules_of(trajectories):
    rule = {task.id: task.fields["rule"] for task in TASKS.train_tasks}
    return [rule[t.task_id] for t in trajectories]


def test_a_demonstration_is_what_the_model_would_have_sampled():
    expert = Experts(TASKS, TOKENIZER, seed=3, carry=("grade",)).take(0, 1)[0]
    task = next(t for t in TASKS.train_tasks if t.id == expert.task_id)
    *prompt, answer = expert.spans
    assert [t for span in prompt for t in span.token_ids] == TOKENIZER.render(task.messages)
    assert not any(span.trainable for span in prompt)
    assert (answer.author, answer.trainable) == (Author.MODEL, True)
    assert answer.logprobs == (0.0,) * len(answer.token_ids)
    assert TOKENIZER.decode(answer.token_ids) == expert.text == task.fields["demonstration"]
    assert answer.token_ids[-1] == TOKENIZER.backend.token_to_id("<|im_end|>")
    labels = label_tokens(TOKENIZER, list("0123"), TOKENIZER.render_text(task.messages))
    assert answer.token_ids[0] == labels[task.fields["grade"]]
    # As a chat template would have written the whole conversation.
    whole = [*task.messages, Message("assistant", expert.text)]
    written = TOKENIZER.render(whole, add_generation_prompt=False)
    assert tuple(written[: len(expert.token_ids)]) == expert.token_ids
    assert (expert.role, expert.finish) == ("expert", Finish.STOP)
    assert expert.info == {"grade": task.fields["grade"]}
    assert msgspec.json.decode(msgspec.json.encode(expert), type=type(expert)) == expert


def test_a_step_takes_the_same_whenever_it_is_asked():
    one, two = (Experts(TASKS, TOKENIZER, seed=5, by="rule") for _ in range(2))
    later = one.take(7, 4)
    one.take(0, 4)
    assert two.take(7, 4) == later
    assert Experts(TASKS, TOKENIZER, seed=6, by="rule").take(7, 4) != later
    assert one.take(3, 0) == []


def test_without_strata_each_comes_once_before_any_comes_again():
    experts = Experts(TASKS, TOKENIZER, seed=1)
    laps = [[t.task_id for step in range(k, k + 4) for t in experts.take(step, 5)] for k in (0, 4)]
    assert sorted(laps[0]) == sorted(laps[1]) == sorted(t.id for t in TASKS.train_tasks)
    assert laps[0] != laps[1]


def test_strata_take_turns_and_rare_ones_appear():
    experts = Experts(TASKS, TOKENIZER, seed=1, by="rule")
    assert experts.counts == {"common": 17, "odd": 2, "rare": 1}
    for step in range(20):
        assert Counter(rules_of(experts.take(step, 6))) == {"common": 2, "odd": 2, "rare": 2}
    # Batches smaller than the number of strata: still one turn each in every three draws.
    drawn = rules_of([t for step in range(9) for t in experts.take(step, 1)])
    assert all(set(drawn[i : i + 3]) == {"common", "odd", "rare"} for i in (0, 3, 6))
    assert len({tuple(drawn[i : i + 3]) for i in (0, 3, 6)}) > 1
    # All of a large stratum are shown in time.
    shown = {t.task_id for step in range(17) for t in experts.take(step, 3)}
    assert shown == {t.id for t in TASKS.train_tasks}


def test_a_list_belongs_to_all_its_strata():
    assert Experts(TASKS, TOKENIZER, by="rules").counts == {
        "all": 20,
        "common": 17,
        "odd": 2,
        "rare": 1,
    }


def test_an_endless_set_is_looked_through_up_to_a_limit(monkeypatch):
    monkeypatch.setattr("burnish.training.data.LOOK", 20)
    experts = Experts(Endless(), TOKENIZER, by="rule")
    assert experts.counts == {"common": 18, "rare": 2}
    taken = {t.task_id for step in range(40) for t in experts.take(step, 2)}
    assert taken <= {f"t{i}" for i in range(20)}


def test_tasks_without_a_demonstration_are_left_out():
    tasks = finite([graded(0), graded(1, demonstration=None), graded(2, demonstration="")])
    assert Experts(tasks, TOKENIZER).counts == {"": 1}
    with pytest.raises(UserError, match="none of the 1 tasks of 'items' looked at has a text in"):
        Experts(finite([graded(1, demonstration="")]), TOKENIZER)


def test_the_end_of_a_turn_is_what_the_template_writes():
    two_ends = Tokenizer(
        TOKENIZER.backend,
        special_tokens=TOKENIZER.special_tokens,
        chat_template="{% for m in messages %}{{ m['content'] }}<|endoftext|>\n{% endfor %}",
        eos_ids=TOKENIZER.eos_ids,
    )
    other = TOKENIZER.backend.token_to_id("<|endoftext|>")
    assert end_of_turn(TOKENIZER) == TOKENIZER.eos_ids[:1]
    assert end_of_turn(two_ends) == two_ends.eos_ids[:1]  # no end token that the model knows
    two_ends.eos_ids = (TOKENIZER.eos_ids[0], other)
    assert end_of_turn(two_ends) == (other,)
    two_ends.template = None
    assert end_of_turn(two_ends) == TOKENIZER.eos_ids[:1]
    picky = Tokenizer(TOKENIZER.backend, chat_template="{{ raise_exception('no') }}", eos_ids=[2])
    assert end_of_turn(picky) == (2,)
