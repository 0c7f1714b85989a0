"""The verl adapter: its signature, and verl's own reward loop loading and calling it."""

import asyncio
import math
from importlib.util import find_spec

import pytest
from engine_cases import Fussy, total

from burnish.engines import as_verl
from burnish.errors import UserError
from burnish.lm.new_model import tiny_model

needs_verl = pytest.mark.skipif(
    find_spec("verl") is None or find_spec("ray") is None,
    reason="needs verl and ray (make test installs them)",
)

REWARD_FILE = """
from burnish.engines import as_verl
from burnish.records import Reward, Status
from burnish.rewards import Numeric, NumericConfig, Scope, Weighted

ASKED = []

class NeedsQuestion:
    name, scope, needs, fingerprint = "question", Scope.POINT, frozenset(), "question-1"

    async def score(self, task, responses):
        ASKED.append([(m.role, m.content) for m in task.messages])
        if "skip" in task.fields:
            reason = "told to skip"
            return [Reward.failed(self.name, Status.ABSTAIN, reason) for _ in responses]
        return [Reward(self.name, float(task.prompt != "")) for _ in responses]

compute_score = as_verl(Weighted([Numeric(NumericConfig(name="correct")), NeedsQuestion()]))
nan_score = as_verl(NeedsQuestion(), missing="nan")
"""


def run(function, **given):
    return asyncio.run(function(**given))


def test_the_same_keys_for_every_sample():
    function = as_verl(total())
    good = run(function, data_source="d", solution_str="it is 7", ground_truth="7", extra_info={})
    bad = run(function, data_source="d", solution_str="none", ground_truth="7", extra_info=None)
    assert good == {
        "score": 1.0,
        "valid": 1.0,
        "correct": 1.0,
        "correct_valid": 1.0,
        "length": 7.0,
        "length_valid": 1.0,
    }
    assert good.keys() == bad.keys()
    assert bad["score"] == 0.0
    assert bad["valid"] == 1.0


def test_no_value_is_a_flag_or_nan_never_a_bare_number():
    given = {"data_source": "d", "solution_str": "timeout", "ground_truth": None}
    assert run(as_verl(Fussy()), **given) == {"score": 0.0, "valid": 0.0}
    marked = run(as_verl(Fussy(), missing="nan"), **given)
    assert math.isnan(marked["score"])
    assert marked["valid"] == 0.0
    with pytest.raises(UserError, match="expected flag, nan"):
        as_verl(Fussy(), missing="zero")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("verl") / "model")


def worker(folder, path, name="compute_score", manager="naive"):
    """verl's reward loop worker, with verl's own default settings for rewards."""
    from pathlib import Path

    import verl
    from omegaconf import OmegaConf
    from verl.experimental.reward_loop import RewardLoopWorker

    defaults = Path(verl.__file__).parent / "trainer" / "config" / "reward" / "reward.yaml"
    config = OmegaConf.create(
        {
            "reward": OmegaConf.load(defaults),
            "actor_rollout_ref": {"model": {"path": str(folder), "tokenizer_path": None}},
        }
    )
    config.reward.custom_reward_function.path = str(path)
    config.reward.custom_reward_function.name = name
    config.reward.reward_manager.name = manager
    return RewardLoopWorker(config)


def batch(worker, rows):
    """verl's batch of (response, ground truth, extra_info, prompt) rows."""
    import numpy
    import torch
    from verl import DataProto

    ids = [worker.input_tokenizer.encode(row[0], add_special_tokens=False) for row in rows]
    width = max(map(len, ids))
    responses = torch.tensor([row + [3] * (width - len(row)) for row in ids])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in ids])

    def column(values):
        boxes = numpy.empty(len(rows), dtype=object)
        boxes[:] = values
        return boxes

    return DataProto.from_dict(
        tensors={
            "prompts": torch.ones(len(rows), 2, dtype=torch.long),
            "responses": responses,
            "attention_mask": torch.cat([torch.ones(len(rows), 2, dtype=torch.long), mask], 1),
        },
        non_tensors={
            "data_source": column(["sums"] * len(rows)),
            "reward_model": column([{"ground_truth": row[1]} for row in rows]),
            "extra_info": column([dict(row[2]) for row in rows]),
            "raw_prompt": column([[{"role": "user", "content": row[3]}] for row in rows]),
        },
    )


ROWS = [("7", "7", {}, "3 + 4?"), ("8", "7", {}, "3 + 4?"), ("7", "7", {"skip": True}, "3 + 4?")]


@pytest.mark.peers
@needs_verl
def test_verls_reward_loop_loads_and_calls_it(folder, tmp_path):
    file = tmp_path / "my_reward.py"
    file.write_text(REWARD_FILE)

    async def score():
        loop = worker(folder, file)
        return await loop.compute_score_batch(batch(loop, ROWS))

    told = asyncio.run(score())
    extras = [one["reward_extra_info"] for one in told]
    # verl's own manager tells no prompt, so `question` is 0 for both that it scored.
    assert [one["reward_score"] for one in told] == [1.0, 0.0, 0.0]
    assert [extra["valid"] for extra in extras] == [1.0, 1.0, 0.0]
    assert [extra["correct"] for extra in extras] == [1.0, 0.0, 1.0]
    assert [extra["question_valid"] for extra in extras] == [1.0, 1.0, 0.0]
    assert len({tuple(extra) for extra in extras}) == 1


@pytest.mark.peers
@needs_verl
def test_the_prompt_manager_tells_the_question(folder, tmp_path):
    import burnish.engines.verl_pieces  # registers the manager

    file = tmp_path / "my_reward.py"
    file.write_text(REWARD_FILE)

    async def score():
        loop = worker(folder, file, manager="burnish_prompt")
        assert isinstance(loop.reward_manager, burnish.engines.verl_pieces.PromptRewardManager)
        return await loop.compute_score_batch(batch(loop, ROWS))

    told = asyncio.run(score())
    assert [one["reward_score"] for one in told] == [2.0, 1.0, 0.0]


@pytest.mark.peers
@needs_verl
def test_scores_reach_verls_tensor_and_its_estimator_leaves_out_what_has_no_value(folder, tmp_path):
    import numpy
    import torch
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    import burnish.engines.verl_pieces  # noqa: F401

    file = tmp_path / "my_reward.py"
    file.write_text(REWARD_FILE)
    rows = [("a", "", {}, "?"), ("b", "", {}, ""), ("c", "", {"skip": 1}, "?"), ("d", "", {}, "?")]

    async def score():
        loop = worker(folder, file, name="nan_score", manager="burnish_prompt")
        data = batch(loop, rows)
        return data, await loop.compute_score_batch(data), type(loop.reward_manager)

    data, told, manager = asyncio.run(score())
    rewards = manager.assemble_rm_scores(data, [one["reward_score"] for one in told])
    mask = data.batch["attention_mask"][:, 2:]
    groups = numpy.array(["g", "g", "g", "g"])
    estimate = get_adv_estimator_fn("grpo_valid")
    advantages, returns = estimate(
        token_level_rewards=rewards, response_mask=mask, index=groups, config=None
    )
    # 1, 0, none, 1: mean 2/3, deviation 0.577 over the three.
    expected = [(1 - 2 / 3) * 3**0.5, -2 / 3 * 3**0.5, 0.0, (1 - 2 / 3) * 3**0.5]
    assert advantages.sum(-1).tolist() == pytest.approx(expected, abs=1e-4)
    assert torch.equal(advantages, returns)
    plain, _ = estimate(rewards, mask, groups, config={"norm_adv_by_std_in_grpo": False})
    assert plain.sum(-1).tolist() == pytest.approx([1 / 3, -2 / 3, 0.0, 1 / 3], abs=1e-5)
