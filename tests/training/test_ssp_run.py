import msgspec
import pytest
from training_cases import assert_same, finish, outcome, stop_after, trainer

from burnish.policy import grpo_advantage
from burnish.records import Author
from burnish.store import RunStore
from burnish.training.events import StepDone

WORLD = {"seed": 3, "people": 24, "companies": 5, "cities": 8}
# A random model writes no tags: the reader lets everything pass that has any text.
GAME = {
    "task": {
        "kind": "function",
        "path": "burnish.agents.ssp.world:make",
        "options": WORLD,
        "held_out_size": 3,
    },
    "rollout": {
        "kind": "function",
        "path": "burnish.agents.ssp.game:SearchSelfPlay",
        "prompts": 3,
        "samples": 2,
        "max_tokens": 12,
        "turn_tokens": 6,
        "max_prompt_tokens": 2000,
        "options": {"corpus_options": WORLD, "reader": "none", "reset_every": 2},
    },
    "rewards": [{"kind": "env", "name": "game"}],
    "policy": {"advantage": {"kind": "sum_then_normalise", "singletons": "raw"}},
    "steps": 3,
    "evaluation": {"prompts": 0},
}


@pytest.fixture
def talkative(monkeypatch):
    """Whatever the random model writes is a question to the proposer and a search's end."""
    import burnish.agents.ssp.game as game
    from burnish.agents.ssp.rules import Filtered

    def every_other(trajectory, golds, rules):
        ids = trajectory.token_ids
        is_valid = sum(ids) % 2 == 0
        question = f"Which one is it that has the number {sum(ids)} in the records?"
        return Filtered(is_valid, "" if is_valid else "format", question, ("a", "b"), ("x",))

    def parity(text, golds):
        return float(sum(text.encode()) % 2)

    monkeypatch.setattr(game.rule_filter, "plain", every_other)
    monkeypatch.setattr(game.solver_score, "plain", parity)


def samples(folder):
    with RunStore.open(folder, read_only=True) as store:
        return [s for s in store.samples() if s.split == "train"]


def test_both_roles_are_trained_in_their_groups(tmp_path, talkative):
    events = finish(trainer(tmp_path, GAME))
    found = samples(tmp_path / "run")
    groups = {}
    for sample in found:
        groups.setdefault((sample.step, sample.trajectory.group), []).append(sample)
    roles = {group.rpartition(".")[2] for _, group in groups}
    assert roles == {"proposer", "solver"}
    for (_, group), members in groups.items():
        if group.endswith("proposer"):
            assert len(members) == 1
            assert members[0].advantage == members[0].reward.value
        else:
            rewards = [s.reward.value for s in members]
            expected = grpo_advantage(rewards, [0] * len(members)).tolist()
            assert [s.advantage for s in members] == pytest.approx(expected)
        for sample in members:
            for span in sample.trajectory.spans:
                assert span.trainable == (span.author is Author.MODEL)
    steps = [event.metrics for event in events if isinstance(event, StepDone)]
    assert all(0 <= step["ssp/valid"] <= 1 for step in steps)
    assert any(step["ssp/pool"] > 0 for step in steps)
    assert steps[1]["ssp/pool"] == 0  # reset after two steps


@pytest.mark.parametrize("trained", ["proposer", "solver"])
def test_a_role_that_is_not_trained_is_no_part_of_the_batch(tmp_path, talkative, trained):
    options = {"rollout": {**GAME["rollout"], "samples": 4}}
    options["rollout"]["options"] = {**GAME["rollout"]["options"], "train": [trained]}
    events = finish(trainer(tmp_path, GAME, options))
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        roles = {(s.split, s.trajectory.role) for s in store.samples()}
    other = {"proposer": "solver", "solver": "proposer"}[trained]
    assert roles == {("train", trained), ("dropped", other)}
    steps = [event.metrics for event in events if isinstance(event, StepDone)]
    assert len(steps) == 3  # the guard on rewards that failed does not count the other role
    assert all(step["status/ok"] == 1 for step in steps)


def test_a_step_without_a_trained_rollout_moves_nothing(tmp_path):
    options = {"rollout": {**GAME["rollout"]}, "steps": 1}
    options["rollout"]["options"] = {**GAME["rollout"]["options"], "train": ["solver"]}
    (done,) = [e for e in finish(trainer(tmp_path, GAME, options)) if isinstance(e, StepDone)]
    assert done.metrics["ssp/valid"] == 0
    assert {s.reward.value for s in samples(tmp_path / "run")} == {None}


def test_what_is_left_of_a_larger_group_is_no_group_of_one(tmp_path, talkative, monkeypatch):
    """Four attempts, three of them lost: the last one has nobody to be compared with."""
    import burnish.agents.ssp.game as game
    from burnish.errors import RolloutError

    search, calls = game.play_searching, []

    async def lossy(players, session, searcher, final):
        if session.role == "solver" and players.place[1] > 0:
            calls.append(players.place)
            raise RolloutError("lost")
        await search(players, session, searcher, final)

    monkeypatch.setattr(game, "play_searching", lossy)
    options = {"rollout": {**GAME["rollout"], "samples": 4}}
    finish(trainer(tmp_path, GAME, options, {"guards": {"failed_share": 1.0}}))
    assert calls
    solvers = [s for s in samples(tmp_path / "run") if s.trajectory.role == "solver"]
    assert {s.reward.value for s in solvers} == {0.0, 1.0}
    assert {s.advantage for s in solvers} == {0.0}


def test_old_logprobs_of_both_roles_are_scored_before_any_update(tmp_path, talkative, monkeypatch):
    from burnish.training.algorithms.policy_update import PolicyUpdate
    from burnish.training.optimiser import MasterAdamW

    order = []
    updates, step = PolicyUpdate.updates, MasterAdamW.step

    def scored(self, batch):
        parts = updates(self, batch)
        roles = {t.role for t in batch.trajectories}
        known = {batch.trajectories[i].role for i in batch.old}
        order.append(("scored", roles, known, len(parts)))
        return parts

    def moved(self, *given, **more):
        order.append("moved")
        return step(self, *given, **more)

    monkeypatch.setattr(PolicyUpdate, "updates", scored)
    monkeypatch.setattr(MasterAdamW, "step", moved)
    samples = {"rollout": {**GAME["rollout"], "samples": 4}}
    finish(trainer(tmp_path, GAME, samples, {"update": {"minibatches": 2}}))
    both = {"proposer", "solver"}
    scored_both = [one for one in order if one != "moved" and one[2] == both]
    assert scored_both
    assert all(parts == 2 for *_, parts in scored_both)
    # Every batch is scored once and whole, then come its updates.
    while order:
        (_, _, _, parts), *order = order
        assert order[:parts] == ["moved"] * parts
        order = order[parts:]


@pytest.mark.parametrize("saved", [False, True])
def test_a_stopped_game_goes_on_bit_by_bit_with_its_pool(tmp_path, talkative, saved):
    more = {"checkpoint": {"every": 1}, "rollout": {**GAME["rollout"], "options": {**GAME["rollout"]["options"], "reset_every": 5}}}  # fmt: skip
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        folder.mkdir()
    finish(trainer(whole, GAME, more))
    stop_after(trainer(cut, GAME, more), 2, saved=saved)
    finish(trainer(cut, GAME, more))
    first, second = outcome(whole / "run"), outcome(cut / "run")
    assert_same(second, first)
    state = msgspec.json.decode(first["state"])
    assert "entries" in str(state)


def test_a_run_that_dies_inside_a_step_goes_on_bit_by_bit(tmp_path, talkative, monkeypatch):
    from burnish.agents.ssp.game import SearchSelfPlay

    more = {"checkpoint": {"every": 1}}
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        folder.mkdir()
    finish(trainer(whole, GAME, more))
    solve, calls = SearchSelfPlay._solve, []

    async def dies(self, *given):
        calls.append(1)
        if len(calls) == 3:  # proposers of the third step have played, their solvers have not
            raise SystemExit("killed")
        return await solve(self, *given)

    monkeypatch.setattr(SearchSelfPlay, "_solve", dies)
    with pytest.raises(SystemExit):
        finish(trainer(cut, GAME, more))
    finish(trainer(cut, GAME, more))
    assert_same(outcome(cut / "run"), outcome(whole / "run"))


def test_solver_mode_is_plain_grpo_on_given_questions(tmp_path):
    options = {**GAME["rollout"]["options"], "mode": "solver"}
    finish(
        trainer(tmp_path, GAME, {"rollout": {**GAME["rollout"], "options": options}, "steps": 2})
    )
    own = samples(tmp_path / "run")
    (tmp_path / "plain.py").write_text(PLAIN)
    plain = {**GAME["rollout"], "path": f"{tmp_path}/plain.py:play", "options": {"world": WORLD}}
    finish(trainer(tmp_path, GAME, {"rollout": plain, "steps": 2}, run="plain"))
    other = samples(tmp_path / "plain")
    assert len(own) == len(other) == 2 * 3 * 2
    for a, b in zip(own, other, strict=True):
        assert a.trajectory.spans == b.trajectory.spans
        assert (a.advantage, a.reward.value) == (b.advantage, b.reward.value)
    weights = [outcome(tmp_path / run)["weights"] for run in ("run", "plain")]
    assert weights[0] == weights[1]


PLAIN = """
from burnish.agents.ssp.rules import solver_score
from burnish.agents.ssp.searching import Searcher, play_searching, solver_messages
from burnish.agents.ssp.world import corpus


async def play(task, players, seed, world):
    session = players.session(solver_messages(task.fields["question"]), role="solver")
    await play_searching(players, session, Searcher(corpus(**world), 3), "answer")
    said = "\\n".join(m.text for m in session.shown if m.role == "assistant")
    return {"solver": {"rewards": {"game": solver_score(said, task.fields["answer"])}}}
"""
