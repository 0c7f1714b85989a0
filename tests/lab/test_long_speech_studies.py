"""The studies of long speech: scenes that can be spoken, goals that are paid, tables that are written."""

import random

import msgspec
import pytest
import torch
from lab.long_speech import planner, plans, scenes
from recipes.long_speech.scenes import STATES, make

from burnish.models.long_speech import Manner, Mix, ToneEngine, read_scene
from burnish.rewards.checks.speech_plan import _change, read_goals
from burnish.speech import read_plan, resolve_manners


def test_the_right_plan_of_every_state_is_paid_in_full_and_a_wrong_one_is_not():
    known, values = plans.caption_rows()
    names = list(STATES)
    assert plans.share_held(values[None, :3], [names[:3]]) == 1.0
    for place, name in enumerate(names):
        assert plans.share_held(values[place].expand(1, 3, 3), [[name] * 3]) == 1.0
    assert planner.pay(["no plan"], ["furious"] * 3) == [0.0]
    assert len(known) == 3


def test_tasks_of_the_recipe_pay_their_own_demonstration():
    for seed in range(10):
        row = make(random.Random(seed))
        planned = read_plan(read_scene(row["scene"]), row["demonstration"])
        manners = resolve_manners(planned).manners
        assert all(goal.holds(_change(manners, goal)) for goal in read_goals(row["goals"], 3))
        assert make(random.Random(seed)) == row


def test_the_table_pays_what_the_check_pays():
    known, _ = plans.caption_rows()
    rng = random.Random(1)
    for _ in range(12):
        chosen = [rng.choice(list(STATES)) for _ in range(3)]
        choice = torch.tensor([[rng.randrange(len(words)) for words in known] for _ in range(3)])
        (paid,) = planner.pay([planner.write_plan(choice, known)], chosen)
        assert planner.held_share(choice, chosen, known) == paid


def heard_scene(text, snr_db=15.0):
    rows = [{"speaker": "AB"[i % 2], "text": text} for i in range(4)]
    table = {"speakers": [{"id": "A"}, {"id": "B"}], "environment": {"snr_db": snr_db}}
    return read_scene({"global": table, "sentences": rows})


def test_level_and_background_are_measured_on_the_mixed_sound():
    """A mixer that lies to the report is found out."""
    manners = [Manner(gain_db=gain) for gain in (0.0, -3.0, 3.0, 0.0)]
    mix = Mix(heard_scene("Nobody told me about it"), ToneEngine(8000, 0.05), manners=manners)
    found = scenes.heard(mix, mix.render())
    levels = [one.loudness_db - found[0].loudness_db for one in found]
    assert levels == pytest.approx([0.0, -3.0, 3.0, 0.0], abs=0.3)
    assert scenes.heard_snr(mix, mix.render()) == pytest.approx(15.0, abs=0.5)
    mix.gains[1] *= 10 ** (-4 / 20)
    mix._wet.cache_clear()
    softer = scenes.heard(mix, mix.render())[1].loudness_db
    # The background, which stays, is in it too.
    assert softer - found[1].loudness_db == pytest.approx(-3.6, abs=0.3)
    mix.gains[1] *= 10 ** (4 / 20)
    mix._wet.cache_clear()
    mix._noise_gain *= 10 ** (6 / 20)
    assert scenes.heard_snr(mix, mix.render()) == pytest.approx(9.0, abs=0.5)


def test_a_sentence_under_another_is_not_heard_alone():
    table = msgspec.to_builtins(heard_scene("Nobody told me about it"))
    table["sentences"][1]["relation"] = {"type": "with", "ref": 0, "offset": 0.0}
    mix = Mix(read_scene(table), ToneEngine(8000, 0.05))
    found = scenes.heard(mix, mix.render())
    assert [one.loudness_db is None for one in found] == [True, True, False, False]
