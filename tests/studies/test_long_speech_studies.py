"""The studies of long speech: scenes that can be spoken, goals that are paid, tables that are written."""

import random

import torch
from recipes.long_speech.scenes import STATES, make
from studies.long_speech import planner, plans, scenes

from burnish.models.long_speech import ToneEngine, read_scene
from burnish.rewards.checks.speech_plan import _change, read_goals
from burnish.speech import mix_scene, read_plan, resolve_manners


def test_random_scenes_can_be_mixed_and_their_bare_lines_too():
    for seed in range(20):
        scene = scenes.random_scene(random.Random(seed), bool(seed % 2))
        # Lines of the study are two seconds long at least, so every overlap fits.
        mix, _ = mix_scene(scene, ToneEngine(1000, 0.08), seed=seed)
        plain = scenes.bare(scene)
        assert len(mix.timeline) == len(plain.sentences)
        assert not plain.overall.emotion.arc
        assert plain.overall.environment.snr_db is None


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
