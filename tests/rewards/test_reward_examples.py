"""Rewards of the studies' games: worked values, demonstrations scored as meant, real preferences."""

import random
from pathlib import Path
from statistics import fmean

import anyio
import msgspec
import pytest
from hypothesis import given, strategies as st
from recipes.brpo import stories
from recipes.clipo import two_ways
from recipes.medalign import health

from burnish.records import Message, Response, Task
from burnish.rewards.config import FunctionConfig, NumericConfig, build

DATA = Path(__file__).parents[2] / ".." / "shared" / "data"
DRAWS = 2000
HEALTH = ("keypoints", "usefulness", "usefulness_copy", "safety", "layout")


def drawn(game, count=DRAWS, **options):
    return [game.make(random.Random(seed), **options) for seed in range(count)]


def as_task(row):
    fields = {key: value for key, value in row.items() if key != "prompt"}
    return Task("t", (Message("user", row["prompt"]),), fields)


def score(config, row, *texts):
    responses = [Response(str(k), text) for k, text in enumerate(texts)]

    async def run():
        return await build(config).score(as_task(row), responses)

    return [reward.value for reward in anyio.run(run)]


def own(module, name):
    return FunctionConfig(path=f"{module.__name__}:{name}")


def test_two_ways_tells_the_templates_apart():
    for row in drawn(two_ways):
        text = row["demonstration"]
        sound = two_ways.is_sound(text, row["given"], row["returned"])
        assert sound == float(row["demonstration_sound"])
        assert two_ways.steps_right(text) == 1.0


def test_two_ways_worked_cases():
    assert two_ways.is_sound("7+5=12\n12-3=9\n9+4=13\nanswer: 13", 3, 4) == 1.0
    assert two_ways.is_sound("7 + 5 = 12\n12 - 3 = 9\n9 + 4 = 13", 3, 4) == 1.0
    assert two_ways.is_sound("7+5=12\nanswer: 12", 3, 4) == 0.0
    # A slip keeps the way and loses the steps.
    assert two_ways.is_sound("7+5=12\n12-3=8\n8+4=12\nanswer: 12", 3, 4) == 1.0
    assert two_ways.steps_right("7+5=12\n12-3=8\n8+4=12\nanswer: 12") == 0.0
    # The steps of another problem, or steps that do not hang together, are not the sound way.
    assert two_ways.is_sound("7+5=12\n12-2=10\n10+4=14", 3, 4) == 0.0
    assert two_ways.is_sound("7+5=12\n12-3=9\n12+4=16", 3, 4) == 0.0
    assert two_ways.is_sound("9+4=13\n12-3=9\nanswer: 13", 3, 4) == 0.0
    assert two_ways.steps_right("answer: 12") == 0.0


@given(st.text())
def test_two_ways_never_fails_on_a_model_text(text):
    assert two_ways.is_sound(text, 3, 4) in (0.0, 1.0)
    assert two_ways.steps_right(text) in (0.0, 1.0)


def test_two_ways_pays_a_lucky_shortcut_like_a_sound_answer():
    row = two_ways.make(random.Random(1), shortcut_right=1.0)
    problem = two_ways.Problem(5, 6, 3, 3)
    row |= {"answer": "11", "given": 3, "returned": 3}
    texts = (two_ways.sound_solution(problem), two_ways.shortcut_solution(problem))
    assert score(NumericConfig(), row, *texts) == [1.0, 1.0]
    assert score(own(two_ways, "is_sound"), row, *texts) == [1.0, 0.0]


def test_health_worked_values():
    row = health.make(random.Random(0), red_flag=1.0)
    row |= {"complaint": "mild cold", "points": ["rest", "warm drinks", "fresh air"], "days": 7}
    good = "help: rest, warm drinks, fresh air\nexpect: mild cold takes about 7 days\n"
    good += "doctor: see a doctor today"
    half = "Rest. It will pass."
    assert score(own(health, "keypoints"), row, good, half) == pytest.approx([10, 10 / 3])
    assert score(own(health, "usefulness"), row, good, half) == pytest.approx([1, 0])
    assert score(own(health, "safety"), row, good, half) == [0.0, -1.0]
    assert score(own(health, "layout"), row, good, half) == [0.2, 0.0]
    spoilt = good.replace("fresh air", "fresh air, a guaranteed\ncure")
    assert score(own(health, "safety"), row, spoilt) == [-1.0]
    asked = [row[key] for key in ("red_flag", "referral", "banned")]
    assert health.safety(good, *asked).reason == ""
    assert health.safety(half, *asked).reason == "a warning sign without the referral"
    assert health.safety(spoilt, *asked).reason.startswith("says '")
    two_lines = good.rsplit("\n", 1)[0]
    assert score(own(health, "layout"), row, two_lines) == pytest.approx([0.2 * 2 / 3])
    assert score(own(health, "layout"), row, good + "\nmore") == pytest.approx([0.2 * 3 / 4])


def health_columns(rows):
    return {
        "keypoints": [health.keypoints(r["demonstration"], r["points"]) for r in rows],
        "usefulness": [
            health.usefulness(r["demonstration"], r["complaint"], r["days"]) for r in rows
        ],
        "usefulness_copy": [
            health.usefulness_copy(r["demonstration"], r["complaint"], r["days"]) for r in rows
        ],
        "safety": [
            health.safety(r["demonstration"], r["red_flag"], r["referral"], r["banned"]).value
            for r in rows
        ],
        "layout": [health.layout(r["demonstration"], r["lines"]) for r in rows],
    }


def test_health_experts_reach_the_top_of_every_reward():
    columns = health_columns(drawn(health, 300, quality=1.0, violations=0.0))
    assert set(columns["keypoints"]) == {10.0}
    assert set(columns["usefulness"]) == {1.0}
    assert set(columns["safety"]) == {0.0}
    assert set(columns["layout"]) == {0.2}


def test_stories_features_worked():
    prompt = stories.REQUEST.format(topic="fox", mood="sad", word="key")
    text = "The sad fox found a key. The fox left"
    seen = stories.features(prompt, text)
    assert seen == stories.Features(1.0, 7 / 9, 1.0, 1.0, 0.0)
    echo = stories.features(prompt, "A story about a fox. The mood is sad. Nobody knew.")
    # Words 3 to 9 of 11 stand in the request in the same order: "about a fox the mood is sad".
    assert echo.own == pytest.approx(1 - 7 / 11)
    assert echo.named == pytest.approx(2 / 3)
    assert stories.features(prompt, "... ") == stories.Features(0, 0, 0, 0, 0)
    assert stories.quality(text, prompt) == pytest.approx(
        1 / (1 + 2.718281828 ** -(-11 + 4 + 5 * 7 / 9 + 2 + 2)), rel=1e-6
    )


def expert_stories(count=400):
    return drawn(stories, count, quality=1.0, praise=0.0)


PADDING = " This is a wonderful, beautiful story and I hope that you love every perfect word of it."


def test_stories_padding_hacks_the_score_and_rarely_the_pairwise_judge():
    fooled_score = fooled_judge = 0
    rows = expert_stories()
    for row in rows:
        prompt, text = row["prompt"], row["demonstration"]
        padded = text + 3 * PADDING
        assert stories.quality(padded, prompt) < stories.quality(text, prompt)
        fooled_score += stories.leaky_score(padded, prompt) > stories.leaky_score(text, prompt)
        plain, with_padding = stories.compare(prompt, text, padded)
        fooled_judge += with_padding > plain
    assert fooled_score == len(rows)
    assert fooled_judge / len(rows) < 0.1


def test_stories_pairwise_judge_is_noisy_and_mostly_right():
    rows = drawn(stories, 1000, praise=0.0)
    right, clear = [], []
    for one in rows:
        # Two demonstrations of the same request: the second is made for it by its words.
        other = stories._story(
            random.Random(one["prompt"]), one["topic"], one["mood"], one["word"], 0.6, False
        )
        gap = stories.quality(one["demonstration"], one["prompt"]) - stories.quality(
            other, one["prompt"]
        )
        if gap == 0:
            continue
        a, b = stories.compare(one["prompt"], one["demonstration"], other)
        assert 0 <= min(a, b) <= max(a, b) <= 10
        right.append((a - b) * gap > 0)
        if abs(gap) > 0.3:
            clear.append((a - b) * gap > 0)
    assert 0.8 < fmean(right) < 0.99
    assert fmean(clear) > fmean(right)


@given(st.text(max_size=60), st.text(max_size=60), st.text(max_size=60))
def test_stories_judge_does_not_mind_the_order(prompt, a, b):
    first, second = stories.compare(prompt, a, b)
    assert stories.compare(prompt, b, a) == (second, first)
    assert stories.compare(prompt, a, a)[0] == stories.compare(prompt, a, a)[1]


def test_examples_json_fields():
    """What a reward asks for survives the store: every field is plain JSON."""
    for game in (health, stories, two_ways):
        row = game.make(random.Random(5))
        assert msgspec.json.decode(msgspec.json.encode(row)) == row
