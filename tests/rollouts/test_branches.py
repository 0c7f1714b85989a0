"""Several replies to one prompt, groups within a role, and options that differ in evaluation."""

from functools import partial

import anyio
import pytest
from rollout_cases import Speaker, a_task, assert_masked

from burnish.lm.base import Sampling
from burnish.records import Message, Status
from burnish.rollouts import FunctionRollout, roll_out

SAID = []


async def play(task, players, seed, count=3, trained=True, bad=None):
    """A leader and, for each rollout, followers in a group of their own."""
    leader = players.session(task.messages, role="leader")
    await players.generate(leader)
    asked = [Message("user", "follow")]
    own = None if trained else players.lm
    follower = players.session(asked, role="follower", group=str(players.place[1]), lm=own)
    branches = await players.branch(follower, count)
    SAID.append([branch.text for branch in branches])
    for number, branch in enumerate(branches):
        branch.info["rewards"] = {"won": float(number) if bad is None else bad}


def played(n=2, family="chatml", **options):
    speaker = Speaker(lambda prompt, sampling: f"seed {sampling.seed % 97}", family)
    settings = FunctionRollout(path=f"{__file__}:play", options=options)
    run = partial(
        roll_out, [(0, a_task())], speaker, Sampling(n=n, max_tokens=32), settings.build(), 3
    )
    (found,) = anyio.run(run)
    return speaker, found


def test_branches_are_sampled_in_one_call_and_take_their_session_s_place():
    speaker, found = played()
    assert sorted(sampling.n for _, sampling in speaker.calls) == [1, 1, 3, 3]
    followers = [t for t in found if t.role == "follower"]
    assert [t.group for t in followers] == ["t1.follower.0"] * 3 + ["t1.follower.1"] * 3
    assert {t.group for t in found if t.role == "leader"} == {"t1.leader"}
    assert [t.info["rewards"]["won"] for t in followers[:3]] == [0.0, 1.0, 2.0]
    for trajectory in found:
        assert_masked(trajectory)
    seeds = {sampling.seed for _, sampling in speaker.calls}
    assert len(seeds) == 4  # every call of every rollout draws for itself


def test_a_role_of_the_same_weights_need_not_be_trained():
    _, found = played(trained=False)
    assert {t.role for t in found} == {"leader"}


@pytest.mark.parametrize("bad", [float("nan"), "much"])
def test_rewards_that_a_game_writes_itself_must_be_finite_numbers(bad):
    _, found = played(n=1, bad=bad)
    assert {t.status for t in found} == {Status.INFRA_ERROR}
    assert "expected a finite number" in found[0].reason


def test_options_may_differ_in_evaluation():
    settings = FunctionRollout(
        path=f"{__file__}:play", options={"count": 3}, evaluation_options={"count": 1}
    )
    for build, count in ((settings.build, 3), (settings.build_evaluation, 1)):
        speaker = Speaker(lambda prompt, sampling: "a")
        anyio.run(partial(roll_out, [(0, a_task())], speaker, Sampling(max_tokens=8), build(), 1))
        assert [sampling.n for _, sampling in speaker.calls] == [1, count]
