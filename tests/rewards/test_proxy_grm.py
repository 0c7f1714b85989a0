"""Proxy-GRM: reading of a judge's blocks, composition, and the reward with its proxy."""

from __future__ import annotations

import itertools
import time

import anyio
import pytest
import torch
from hypothesis import given, strategies as st

from burnish.policy import grpo_advantage
from burnish.records import Message, Response, Status, Task
from burnish.rewards import build
from burnish.rewards.config import RewardConfig
from burnish.rewards.judges import proxy_grm as p
from burnish.rewards.judges.proxy_rubric import (
    FunctionProxy,
    ModelProxy,
    ProxyRubricConfig,
    ProxyVerifiedRubric,
)
from burnish.rewards.scorer import checked

GOOD = (
    "<rubric>Clarity 60%, facts 40%<justify>why</justify></rubric><eval>e</eval><answer>1</answer>"
)


# Reading.


@pytest.mark.parametrize(
    ("text", "strict", "loose"),
    [
        (GOOD, True, True),
        (GOOD.replace("</rubric><eval>", "</rubric>\n\n<eval>"), True, True),
        (GOOD.replace("</rubric><eval>", "</rubric> <eval>"), False, True),
        (f" {GOOD}\n", False, True),
        (f"Sure! {GOOD}", False, False),
        (f"{GOOD} Done.", False, False),
        (GOOD.replace("<eval>e</eval>", ""), False, False),
        (GOOD.replace("<eval>e</eval>", "<eval>e</eval><eval>e</eval>"), False, False),
        (GOOD.replace("Clarity", "<rubric2>Clarity"), False, False),
        ("<think>t</think><summary>s</summary><answer>1</answer>", False, False),
        ("", False, False),
    ],
)
def test_format(text, strict, loose):
    assert p.format_ok(text) is strict
    assert p.format_ok(text, strict=False) is loose
    assert p.format_ok([text, GOOD]) == [strict, True]


@pytest.mark.parametrize(
    ("text", "label", "reward"),
    [
        ("<answer>1</answer>", 1, 1.0), ("<answer> Response 2. </answer>", 2, 1.0),
        ("<answer>1</answer>", "<answer>1</answer>", 1.0),
        ("<answer>1</answer><answer>2</answer>", 1, 1.0),  # the first block counts
        ("<answer>1 and 2</answer>", 1, -1.0), ("<answer>10</answer>", 1, -1.0),
        ("<answer></answer>", 1, -1.0), ("the better one is 2", 2, 1.0), ("nothing", 2, -1.0),
    ],
)  # fmt: skip
def test_accuracy(text, label, reward):
    assert p.accuracy_reward((text, label)) == reward
    assert p.accuracy_reward([{"text": text, "label": label}]) == [reward]


def test_a_verdict_without_its_block_is_paid_only_leniently():
    assert p.accuracy_reward(("it is 1", 1), lenient=False) == -1.0


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("first 1, then 2", 2), ("<answer>1</answer> 2", 1), ("<answer>1 2</answer>", None),
        ("neither", None), ("12", None),
    ],
)  # fmt: skip
def test_choice_of_a_proxy(text, choice):
    assert p.proxy_choice(text) == choice
    assert p.proxy_reward((text, 1)) == (1.0 if choice == 1 else -1.0)


def test_a_rubric_is_what_stands_in_its_block_before_the_justification():
    assert p.extract_rubric(GOOD) == "<rubric>Clarity 60%, facts 40%</rubric>"
    for text in (
        GOOD.replace("</rubric>", ""),  # the published code sends the whole reply
        GOOD.replace("<rubric>", ""),
        "<rubric> \n</rubric>",
        "<rubric><justify>j</justify></rubric>",
        "<rubric>facts, 1</answer></rubric>",
        "",
        None,
    ):
        assert p.extract_rubric(text) is None


words = st.text(st.sampled_from("abc <>/12\n%"), max_size=12)
blocks = st.permutations(["rubric", "justify", "eval", "answer"])


@given(
    order=blocks,
    missing=st.sets(
        st.sampled_from([f"{e}{n}" for n in ("justify", "rubric") for e in ("<", "</")])
    ),
    inner=words, nested=st.booleans(), shouted=st.booleans(),
)  # fmt: skip
def test_nothing_but_the_rubric_reaches_the_proxy(order, missing, inner, nested, shouted):
    secret = {"justify": "JUSTIFIED", "eval": "EVALUATED", "answer": "ANSWERED"}

    def block(name, content):
        opened = "" if f"<{name}" in missing and name != "justify" else f"<{name}>"
        closed = "" if f"</{name}" in missing else f"</{name}>"
        return f"{opened}{content}{closed}"

    parts = {name: block(name, said) for name, said in secret.items()}
    held = "".join(parts[name] for name in order if name in secret) if nested else parts["justify"]
    parts["rubric"] = block("rubric", inner + held)
    text = "".join(parts[name] for name in order if name != "justify")
    text = text.replace("<eval>", "<EVAL >").replace("<justify>", "< Justify>") if shouted else text
    rubric = p.extract_rubric(text)
    assert rubric is None or not any(word in rubric for word in secret.values()), text


@pytest.mark.parametrize(
    "sentence",
    [
        "Response 1 is better.", "The second answer is clearly superior", "Answer: 2",
        "I prefer response 2 here.", "The better response is the first one.", "Verdict = B",
        "response (1) wins", "1 > 2", "Candidate A is right.", "Response 2 is worse.",
        "Response 1\nis better", "Response no. 1 is better", "2 is better.", "Choose 1.", "Pick 2",
        "The winner is\n1", "The better one is #2", "Response １ is better", "Response ① is better",
        "Response ❷ wins", "Response 1\ufe0f\u20e3 is better", "Response\u00a0𝟏 is better",
        "Ｐick ２", "Response one is better", "Response II is better", "reply 2 wins",
        "prefer the former", "Prefer the latter.", "The latter is better",
        "response_1 is the stronger one", "Response b is better", "Response 1 over response 2",
        "answer: a", "Winner: **2**", "The best answer is (1)", "The first is better",
        "Choose the second.", "Response 1 is more accurate.",
        "The second response is clearly less helpful", "Response B seems clearer.",
        "Rеsponse 1 is bеtter.",  # Cyrillic е
        "Response А wins",  # Cyrillic А
        "Rεsponse 2 is bεtter",  # Greek ε
        "Antwort 1 ist besser.", "Die zweite Antwort ist deutlich schlechter",
        "Bevorzuge Antwort B", "Die bessere ist Antwort 2", "La réponse 1 est meilleure.",
        "La première réponse est plus précise", "Choisis la réponse 2", "La respuesta 2 es mejor.",
        "La segunda respuesta es claramente peor", "Elige la respuesta A", "回答1更好", "第二个回答更准确。",
        "更好的是回答2", "选择答案A", "前者优于后者",
    ],
)  # fmt: skip
def test_a_rubric_that_names_a_winner_is_found(sentence):
    rubric = f"<rubric>Facts 60%. {sentence}</rubric>"
    assert p.leaks(rubric)
    assert p.without_leaks(rubric) == "<rubric>Facts 60%.</rubric>"
    assert p.without_leaks(f"<rubric>{sentence}</rubric>") is None


@pytest.mark.parametrize(
    "rubric",
    [
        "Accuracy of facts (50%): are dates and names right? Clarity (50%).",
        "1. Correctness 40%\n2. Style 60%: shorter sentences are better.",
        "A good answer names two sources and prefers primary ones.",
        "The response must first answer the question, then give a reason.",
        "The code outputs a correct result: 60%",
        "First, check that the facts are correct.",
        "answer: a number with a unit",
        "The second criterion is the best evidence",
        "label: a short text",
        "A response must first answer the question with correct facts.",
        "Compare response 1 and response 2: which has more correct facts?",
        "Say whether response 1 or 2 is better by dates (70%) and names (30%).",
        "Pick 2 examples and check them.",
        "Give each answer 1 point if correct, result: 0 otherwise.",
        "A score of 2 is better than 1.",
        "Prefer the answer one can check; the best response names two sources.",
        "For each response\n1. Correct facts: better dates (40%)\n2) right names (60%)",
        "A good answer is:\n1. Accurate (40%)\n2. Short (60%)",
        "The context 1 sentence before is correct.",
        "Answer: 1.5 is correct within 2%.",
        "The answer is first checked for facts.",
        "Choose one.",
        "The answer is -1 or 12.",
        "The response is more accurate if it names dates.",
        "A response that is clearer is better.",
        "More accurate dates are worth 2 points, clearer names 1.",
        "Die beste Antwort nennt Quellen (60%).",
        "Erstens: Ist die Antwort richtig? Zweitens: Ist sie kurz?",
        "Vergleiche Antwort 1 und Antwort 2: welche ist besser belegt?",
        "La meilleure réponse cite 2 sources.",
        "Compare la réponse 1 et la réponse 2 : laquelle est meilleure ?",
        "La mejor respuesta da 1 punto por cada fuente correcta.",
        "更好的回答会给出来源（60%）。",
        "比较回答1和回答2：哪个更好？",
        "准确性 60%，清晰度 40%。",
        "Факты важнее стиля (60%).",
    ],
)
def test_a_rubric_about_criteria_is_no_leak(rubric):
    assert p.leaks(rubric) == []


@pytest.mark.parametrize(
    "text", ["response ", "the first ", "1 or 2 ", "better ", "response 1 a ", "antwort 1 ", "回答1", "mejor la ", "\n", " ", "-", "winner is"]
)  # fmt: skip
def test_a_long_rubric_is_read_in_no_time(text):
    start = time.process_time()
    p.leaks(text * (20_000 // len(text)))
    p.leaks("The response" + text * (20_000 // len(text)))
    assert time.process_time() - start < 5


CRITERIA = ["Accuracy", "Correct facts", "The better style", "Best evidence", "right answer", "Preferred tone", "A winner's clarity", "Responses that one can check"]  # fmt: skip


@given(
    st.lists(st.tuples(st.sampled_from(CRITERIA), st.integers(0, 100)), min_size=1, max_size=6),
    st.sampled_from(["{n}. {name} ({w}%)", "{n}) {name}: {w}%", "({n}) {name} {w} %", "- {name}: {w} points", "{n}. {name}, weight {w}"]),
    st.sampled_from(["", "Judge each response by:\n", "The better answer has\n", "What each answer\n"]),
)  # fmt: skip
def test_weights_and_numbered_lists_are_never_refused(criteria, form, start):
    lines = [form.format(n=n, name=name, w=w) for n, (name, w) in enumerate(criteria, 1)]
    assert p.leaks(f"<rubric>{start}" + "\n".join(lines) + "</rubric>") == []


MANY = 200_000
LOOPS = {
    "digits": "1" * MANY,
    "answers that never end": "<answer>" * (MANY // 8),
    "blocks again and again": "<rubric>"
    + "</rubric><eval></eval><answer></answer>" * (MANY // 40)
    + "x",
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_reply_that_says_one_thing_for_ever_is_read_in_one_pass(name):
    """A model in training writes such replies; read in squares or cubes they would take hours."""
    text = LOOPS[name]
    assert p.weights_ok(text) is False
    assert p.format_ok(text) is False
    assert p.proxy_choice(text) is None
    assert p.accuracy_reward((text, 1)) == -1.0


def test_weights_of_a_rubric():
    assert p.weights_ok("a 12.5%, b 1.2.87.5%")
    assert p.weights_ok("a 60%, b 40%")
    assert not p.weights_ok("a 60%, b 30%")
    assert not p.weights_ok("no weights")


# Composition.

TABLE = {
    0: (2.5, 0.5, 0.5, -1.5), 1: (2.5, -1.5, -1.5, -1.5), 2: (1.5, -0.5, -0.5, -0.5),
    3: (3, 0, 0.5, -1.5), 4: (3, 0, 0, -1.5), 5: (3, 0, 0, -2.5), 6: (2.5, 0, 0.5, -1.5),
    7: (2, 1, -0.5, -0.5), 8: (2, 1, -1, -0.5), 9: (2, 1, -1, -1.5), 10: (1.5, 1, -0.5, -0.5),
}  # fmt: skip
SIGNS = ((1, 1), (1, -1), (-1, 1), (-1, -1))


def published(variant, acc, prox, has_format):
    """The release's chain of cases, by what it does to the two rewards."""
    a, i = float(acc), float(prox)
    if variant == 1 and a != i:
        a = i = -1.0
    elif variant == 2:
        a, i = (1.0 if a == i == 1 else -1.0), 0.0
    elif variant > 2:
        rest = {3: (-1, -1), 6: (-1, -1), 7: (-1, -1), 10: (-1, -1)}.get(variant)
        if rest is None:
            rest = (-1.5, -1) if variant in (4, 8) else (-1.5, -2)
        good = (1.0, 0.5) if variant in (6, 10) else (1.5, 0.5)
        a = (good if acc > 0 else rest)[i < 0]
        i = 0.0 if variant > 6 else i
    return a + i + 0.5 * has_format


@pytest.mark.parametrize("variant", TABLE)
@pytest.mark.parametrize("has_format", [True, False])
def test_all_cells_of_all_variants(variant, has_format):
    cells = p.compose_variants(has_format, [variant])[variant]
    assert cells == p.compose_variants(has_format, variant)
    for cell, expected, (acc, prox) in zip(cells, TABLE[variant], SIGNS, strict=True):
        assert cell == expected - (0 if has_format else 0.5)
        assert cell == published(variant, acc, prox, has_format)
        assert p.variant_score(variant, acc, prox, has_format) == cell


def test_composition_by_weights():
    assert p.compose("additive", True, (1, 1, 0.5)) == TABLE[0]
    assert p.compose("no_proxy", True) == (1.5, 1.5, -0.5, -0.5)
    assert p.compose(weights=(1, 0, 0.5)) == p.compose("no_proxy")
    assert p.compose(acc=1, prox=None) == 1.5
    assert p.compose(acc=-1, prox=1) == 0.5


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("Response 2 is better: 8.1 to 7.4.", 2), ("I pick 1. (score 9.2)", 1),
        ("Response 2 wins, 10/10 to 1/10", 2), ("Response 2 wins 1-0, 2–1 in the rerun", 2),
        ("It is 1.", 1), ("response-2", 2), ("no.1", 1), ("2, not the other", 2), ("1.5", None),
        (".2", None), ("-1", None), ("1,000", None), ("<answer>1.5</answer>", None),
        ("<answer>1.</answer>", 1),
    ],
)  # fmt: skip
def test_only_a_number_of_its_own_names_a_response(text, choice):
    assert p.proxy_choice(text) == choice
    if choice is None:
        assert p.accuracy_reward([(text, 1), (text, 2)]) == [-1.0, -1.0]


# Benchmarks.


def test_benchmarks():
    rows = [
        {"id": "mmmu_1", "rewards": [1, 0], "reverse": False},
        {"id": "mathverse_2", "rewards": [1, 0], "reverse": True},
        {"id": "RLHF-rlaif", "rewards": [0, 1], "reverse": True},
        {"id": "wildvision", "rewards": [0, 0], "reverse": False},  # unparsed: wrong
    ]
    found = p.vl_rewardbench(rows)
    assert (found["reasoning"], found["hallucination"], found["general"]) == (0.5, 1.0, 0.0)
    assert found["micro"] == 0.5
    assert found["macro"] == 0.5
    pairs = [
        {"id": "a", "image": "X/mcq/1.png", "rewards": [1, 0]},
        {"id": "a", "image": "X/mcq/1.png", "rewards": [0, 1]},
        {"id": "b", "video": "Video/2.mp4", "rewards": [1, 0]},
    ]
    told = p.mm_rlhf(pairs)
    assert told["acc"] == pytest.approx(2 / 3)
    assert told["acc_plus"] == 0.5
    assert told["categories"]["mcq"] == {"acc": 0.5, "acc_plus": 0.0}
    assert told["categories"]["long"] == {"acc": None, "acc_plus": None}
    groups = [("Safety", "pairs_1"), ("safety", "x"), ("Reasoning", "math1"), ("reasoning", "c")]
    rows = [{"Category": category, "id": name} for category, name in (*groups, ("VQA", "v"))]
    assert p.mmrb_group(rows) == [
        "safety/bias", "safety/toxicity", "reasoning/math", "reasoning/coding", "vqa",
    ]  # fmt: skip


# The reward.

FIELDS = {"question": "q", "response_1": "good one", "response_2": "bad", "label": 1}


def task(**changes):
    return Task("t", (Message("user", "judge"),), {**FIELDS, **changes})


def reply(rubric="Goodness 100%", answer="1"):
    return f"<rubric>{rubric}</rubric><eval>e</eval><answer>{answer}</answer>"


def by_rubric(question, first, second, rubric):
    """Follows a rubric of goodness, and does not know otherwise."""
    if "Goodness" not in rubric:
        return None
    return 1 if "good" in first else 2


def score(scorer, *texts, of=None):
    responses = [Response(str(n), text) for n, text in enumerate(texts)]
    return anyio.run(checked, scorer, of or task(), responses)


def test_reward_of_verdict_rubric_and_format():
    scorer = ProxyVerifiedRubric(proxy=by_rubric)
    texts = reply(), reply(answer="2"), reply("Style 100%"), reply("Style", "2"), reply() + " "
    assert [r.value for r in score(scorer, *texts)] == [2.5, 0.5, 0.5, -1.5, 2.0]
    first = score(scorer, texts[0])[0]
    assert first.components == {"accuracy": 1.0, "proxy": 1.0, "format": 1.0}
    assert "the proxy is right" in first.evidence[0].observation


def test_the_proxy_sees_the_other_order_and_never_the_verdict():
    seen = []

    def watch(question, first, second, rubric):
        seen.append((question, first, second, rubric))
        return "<answer>2</answer>"

    scorer = ProxyVerifiedRubric(proxy=watch)
    text = "<rubric>Tone<justify>J</justify></rubric><eval>E</eval><answer>1</answer>"
    assert score(scorer, text)[0].value == 2.5  # its second is our first
    assert seen == [("q", "bad", "good one", "<rubric>Tone</rubric>")]
    same = ProxyVerifiedRubric(ProxyRubricConfig(order="same"), watch)
    assert score(same, text)[0].value == 0.5
    assert seen[1][1:3] == ("good one", "bad")


def test_equal_pairs_and_rubrics_are_asked_once_and_failures_again():
    calls = []

    def once(question, first, second, rubric):
        calls.append(rubric)
        if len(calls) == 1:
            raise RuntimeError("down")
        return 2

    scorer = ProxyVerifiedRubric(proxy=once)
    lost = score(scorer, reply())[0]
    assert lost.value is None
    assert lost.status is Status.REWARD_ERROR
    assert "down" in lost.reason
    assert [part.value for part in lost.parts] == [1.0, None, 1.0]
    for _ in range(3):
        assert score(scorer, reply())[0].value == 2.5
    assert len(calls) == 2


def test_a_failed_proxy_may_leave_the_outcome_and_leaves_its_own_statistics():
    def down(question, first, second, rubric):
        raise OSError("no route")

    outcome = ProxyVerifiedRubric(proxy=down, missing="outcome")
    assert score(outcome, reply())[0].value == 1.5
    alone = ProxyVerifiedRubric(proxy=down, value="proxy")
    assert score(alone, reply())[0].value is None
    accuracy = ProxyVerifiedRubric(value="accuracy")
    assert score(accuracy, reply(), reply(answer="2"))[1].value == -1.0


def test_leaks_missing_and_empty_rubrics_are_wrong_and_not_asked():
    def never(question, first, second, rubric):
        raise AssertionError(rubric)

    scorer = ProxyVerifiedRubric(proxy=never)
    leak = reply("Response 1 is better.")
    for text in (leak, reply(""), reply().replace("</rubric>", ""), "1"):
        found = score(scorer, text)[0]
        assert dict(found.components)["proxy"] == -1.0, text
    assert "names a winner" in score(scorer, leak)[0].evidence[0].observation
    off = ProxyVerifiedRubric(ProxyRubricConfig(guard="off"), lambda q, a, b, rubric: 2)
    assert score(off, leak)[0].value == 2.5
    strip = ProxyVerifiedRubric(ProxyRubricConfig(guard="strip"), by_rubric)
    assert score(strip, reply("Goodness. Response 2 is better."))[0].value == 2.5
    rate = ProxyVerifiedRubric(value="leak")
    assert [r.value for r in score(rate, leak, reply())] == [1.0, 0.0]


@given(st.lists(st.tuples(st.sampled_from(["Goodness", "Style", ""]), st.sampled_from("12")), min_size=1, max_size=6))  # fmt: skip
def test_swapping_responses_and_label_changes_nothing(cases):
    scorer = ProxyVerifiedRubric(proxy=by_rubric)
    texts = [reply(*case) for case in cases]
    other = [reply(rubric, "12"[answer == "1"]) for rubric, answer in cases]
    swapped = task(response_1="bad", response_2="good one", label=2)
    assert [r.value for r in score(scorer, *texts)] == [
        r.value for r in score(scorer, *other, of=swapped)
    ]


def test_no_weight_for_the_proxy_is_the_outcome_alone():
    outcome = ProxyVerifiedRubric(weights=(1, 0, 0.5))
    assert [r.value for r in score(outcome, reply(), reply(answer="2"))] == [1.5, -0.5]
    assert outcome.needs == {"label"}


def test_a_proxy_that_ignores_its_rubric_changes_no_advantage():
    texts = [reply(answer=answer) for answer in "1212"] + [reply("Style", "1")]
    deaf = ProxyVerifiedRubric(proxy=lambda q, a, b, rubric: 2)
    values = [[r.value for r in score(s, *texts)] for s in (deaf, ProxyVerifiedRubric(weights=(1, 0, 0.5)))]  # fmt: skip
    got, plain = (grpo_advantage(torch.tensor(v), [0] * 5) for v in values)
    assert torch.allclose(got, plain, atol=1e-9)


def test_a_proxy_of_coin_flips_adds_noise_of_mean_zero_to_advantages_only():
    """Over all flips of four replies: each reward and each advantage is that of the outcome in the mean."""
    texts = [reply(f"Goodness {n}", answer) for n, answer in enumerate("1211")]
    plain = [r.value for r in score(ProxyVerifiedRubric(weights=(1, 0, 0.5)), *texts)]
    rewards = []
    for flips in itertools.product((1, 2), repeat=4):
        proxy = lambda q, a, b, rubric, flips=flips: flips[int(rubric.split()[1][0])]  # noqa: E731
        rewards.append([r.value for r in score(ProxyVerifiedRubric(proxy=proxy), *texts)])
    found, wanted = torch.tensor(rewards), torch.tensor(plain)
    noise = found - wanted
    assert set(noise.flatten().tolist()) == {-1.0, 1.0}
    assert noise.mean(0).tolist() == [0.0] * 4
    advantages = found - found.mean(1, keepdim=True)
    torch.testing.assert_close(advantages.mean(0), wanted - wanted.mean())
    scaled = torch.stack([grpo_advantage(row, [0] * 4) for row in found]).mean(0)
    assert scaled[1] < 0
    torch.testing.assert_close(scaled[[0, 2, 3]], -scaled[1].expand(3) / 3)


async def _slow(question, first, second, rubric):
    await anyio.sleep(5)


def test_a_proxy_past_its_deadline_is_a_timeout():
    scorer = ProxyVerifiedRubric(proxy=FunctionProxy(_slow, deadline_s=0.05))
    assert score(scorer, reply())[0].status is Status.TIMEOUT


def test_a_model_as_the_proxy():
    from burnish.lm import ScriptedLM
    from burnish.rewards.judges import JudgeModel

    asked = []

    def say(messages, *_):
        asked.append(messages[-1].text)
        return "thinking 1 2 <answer>2</answer>"

    scorer = ProxyVerifiedRubric(proxy=ModelProxy(JudgeModel(ScriptedLM(say))))
    assert score(scorer, reply())[0].value == 2.5
    assert "Goodness 100%" in asked[0]
    assert "<eval>" not in asked[0]


def test_the_reward_of_a_recipe(tmp_path):
    import msgspec

    (tmp_path / "mine.py").write_text(
        "def proxy(question, first, second, rubric, word):\n    return 1 if word in first else 2\n"
    )
    proxy = {"kind": "function", "path": "mine.py:proxy", "options": {"word": "good"}}
    table = {"kind": "proxy_rubric", "name": "grm", "variant": 3, "proxy": proxy}
    scorer = build(msgspec.convert(table, RewardConfig), base=tmp_path)
    assert [r.value for r in score(scorer, reply(), reply(answer="2"))] == [3.0, 0.5]
