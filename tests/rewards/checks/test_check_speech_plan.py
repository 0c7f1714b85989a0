"""The reward of plans: by their text, by what follows from their captions, and by speech."""

import importlib.util
import math

import anyio
import pytest

from burnish.records import Response, Status, Task
from burnish.rewards.checks.base import check_of
from burnish.rewards.checks.speech_plan import SpeechPlanConfig

SCENE = {
    "global": {"speakers": [{"id": "A"}]},
    "sentences": [{"speaker": "A", "text": f"The harbour is closed on day {i}."} for i in range(3)],
}
GOALS = [
    {"sentence": 0, "attribute": "rate", "direction": -1},
    {"sentence": 1, "attribute": "gain_db", "direction": 1},
    {"sentence": 2, "attribute": "pitch_st", "direction": 0},
]
GOOD = 'sentences[0].pace = "slow"\nsentences[1].volume = "loud"\nsentences[2].tone = "neutral"'
BAD = 'sentences[0].pace = "fast"\nsentences[1].volume = "soft"\nsentences[2].tone = "furious"'


def value(text, part, fields=None):
    fields = {"scene": SCENE, "goals": GOALS, "arousal": [0.2, 0.9, 0.5]} if fields is None else fields  # fmt: skip
    check = check_of(SpeechPlanConfig(part=part))
    task = Task(id="1", messages=(), fields=fields)
    (reward,) = anyio.run(check.score, task, [Response("1", text)])
    return reward


@pytest.mark.parametrize(
    ("text", "part", "expected"),
    [
        (GOOD, "valid", 1.0), ("no plan", "valid", 0.0), ("no plan", "all", 0.0),
        (GOOD, "follow", 1.0), (BAD, "follow", 0.0),
        ('sentences[2].tone = "neutral"', "follow", 1 / 3),
        ('sentences[0].pace = "slow"', "follow", 1 / 3),  # nothing is said of the plain sentence
        ("", "follow", 0.0),  # silence is no plain voice
        ("\n\n\n", "all", 0.0), ("", "valid", 0.0), (GOOD, "complete", 3 / 9),
        (GOOD, "all", 0.2 + 0.2 * 3 / 9 + 0.6),
        ('sentences[0].tone = "sad"\nsentences[1].tone = "furious"', "arc", 1.0), ("", "arc", 0.0),
    ],
)  # fmt: skip
def test_values_by_hand(text, part, expected):
    assert value(text, part).value == pytest.approx(expected)


def test_words_that_mean_nothing_do_not_complete_a_plan():
    filled = "\n".join(f'sentences[{i}].{name} = "mauve"' for i in range(3) for name in ("tone", "pace", "volume"))  # fmt: skip
    assert value(filled, "complete").value == 0.0
    assert value(filled.replace("mauve", "very"), "complete").value == 0.0
    assert value(filled.replace("mauve", "..."), "complete").value == 0.0
    assert value(filled.replace("mauve", "neutral"), "complete").value == 1.0


@pytest.mark.parametrize(
    "fields",
    [
        {"scene": {"sentences": 3}, "goals": GOALS},
        {"scene": SCENE, "goals": []},
        {"scene": SCENE, "goals": [{"sentence": 9, "attribute": "rate", "direction": 1}]},
        {"scene": SCENE, "goals": [{"sentence": 0, "attribute": "colour", "direction": 1}]},
    ],
)
def test_a_task_that_cannot_be_judged_has_no_value(fields):
    reward = value(GOOD, "follow", fields)
    assert reward.value is None
    assert reward.status is Status.ABSTAIN


@pytest.mark.skipif(
    importlib.util.find_spec("espeakng_loader") is None, reason="not installed: espeakng-loader"
)
def test_the_same_goals_hold_in_speech():
    assert value(GOOD, "render").value == 1.0
    assert value(BAD, "render").value == 0.0


@pytest.mark.skipif(
    importlib.util.find_spec("espeakng_loader") is None, reason="not installed: espeakng-loader"
)
def test_speech_that_cannot_be_measured_has_no_value():
    silent = {**SCENE, "sentences": [{"speaker": "A", "text": "[pause 1]"}]}
    goals = [{"sentence": 0, "attribute": "pitch_st", "direction": 0}]
    reward = value('sentences[0].tone = "neutral"', "render", {"scene": silent, "goals": goals})
    assert reward.value is None
    assert reward.status is Status.ABSTAIN


def test_a_reply_of_a_thousand_brackets_is_worth_0_and_leaves_its_group_alone():
    check = check_of(SpeechPlanConfig(part="follow"))
    task = Task(id="1", messages=(), fields={"scene": SCENE, "goals": GOALS})
    deep = "sentences[0].tone = " + "[" * 1000
    first, second = anyio.run(check.score, task, [Response("1", GOOD), Response("2", deep)])
    assert (first.value, second.value) == (1.0, 0.0)


def test_a_rule_that_breaks_on_one_response_scores_the_others(monkeypatch):
    check = check_of(SpeechPlanConfig(part="valid"))
    judge = check.judge

    def breaks(task, response):
        if response.id == "2":
            raise RecursionError("too deep")
        return judge(task, response)

    monkeypatch.setattr(check, "judge", breaks)
    task = Task(id="1", messages=(), fields={"scene": SCENE, "goals": GOALS})
    rewards = anyio.run(check.score, task, [Response(i, GOOD) for i in "123"])
    assert [one.value for one in rewards] == [1.0, None, 1.0]
    assert rewards[1].status is Status.INFRA_ERROR


DIALOGUE = {
    "global": {
        "speakers": [{"id": "A", "voice": "f2"}, {"id": "B", "voice": "m3"}],
        "environment": {"caption": "rain", "snr_db": 20.0},
    },
    "sentences": [
        {"speaker": "AB"[i % 2], "text": f"The harbour is closed on day number {i}, they say."}
        for i in range(6)
    ],
}


@pytest.mark.skipif(not importlib.util.find_spec("espeakng_loader"), reason="needs espeak-ng")
def test_what_is_heard_in_the_mixed_scene_is_marked():
    loud = [-9, -9, 0, 0, 9, 9]
    rising = "\n".join(f'sentences[{i}].volume = "{db} dB"' for i, db in enumerate(loud))
    falling = "\n".join(f'sentences[{i}].volume = "{-db} dB"' for i, db in enumerate(loud))
    fields = {"scene": DIALOGUE, "arousal": [0.1, 0.1, 0.5, 0.5, 0.9, 0.9]}
    assert value(rising, "heard_loudness", fields).value > 0.9
    assert value(rising, "heard_arc", fields).value > 0.9
    assert value(falling, "heard_arc", fields).value == 0.0
    assert value(rising, "heard_snr", fields).value > 0.9
    assert 0 < value(rising, "heard_gaps", fields).value < 1
    # Nobody talks over another here; in meetings 0.142 of the speech does.
    assert value(rising, "heard_overlap", fields).value == pytest.approx(math.exp(-1))
    unasked = value(rising, "heard_pitch", fields)
    assert (unasked.value, unasked.status) == (None, Status.ABSTAIN)
    assert value("no plan", "heard_arc", fields).value == 0.0
