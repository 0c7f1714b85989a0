"""The TRL adapter: its signature, and two real steps of the real GRPOTrainer on the CPU."""

from importlib.util import find_spec

import msgspec
import pytest
from engine_cases import Fussy, total

from burnish.engines import as_trl, as_trl_rollout, read_traces
from burnish.lm.new_model import tiny_model
from burnish.records import Message, Reward, Status, Task
from burnish.rewards import Scope
from burnish.rewards.config import RewardConfig, build_all
from burnish.rollouts import EnvRollout, Observation, env_rollout

PROMPTS = ["What is 3 + 4?", "What is 3 + 4?", "What is 5 + 5?"]


def test_values_and_nones_in_order():
    reward = as_trl(Fussy())
    values = reward(prompts=PROMPTS, completions=["a", "refused", "ccc"], completion_ids=[[1]] * 3)
    assert values == [1.0, None, 3.0]
    assert reward.__name__ == "fussy"


def test_parts_statuses_and_keys_are_logged():
    metrics, columns = {}, {}
    reward = as_trl(total())
    values = reward(
        prompts=PROMPTS,
        completions=["7", "eight", "1"],
        answer=["7", "7", "10"],
        log_metric=metrics.__setitem__,
        log_extra=columns.__setitem__,
    )
    assert values == [1.0, 0.0, 0.0]
    assert metrics == {
        "total/valid": 1.0,
        "total/correct": pytest.approx(1 / 3),
        "total/length": pytest.approx(7 / 3),
    }
    assert columns["total/length"] == [1.0, 5.0, 1.0]
    assert columns["total/status"] == ["ok"] * 3
    assert len(set(columns["total/trace"])) == 3


class Wayward:
    """Every fourth response has no value, the others alternate."""

    name = "wayward"
    scope = Scope.POINT
    needs = frozenset({"answer"})
    fingerprint = "wayward-1"

    def __init__(self):
        self.count = 0

    async def score(self, task, responses):
        rewards = []
        for _ in responses:
            self.count += 1
            if self.count % 4 == 0:
                rewards.append(Reward.failed(self.name, Status.PARSE_ERROR, "no verdict"))
            else:
                rewards.append(Reward(self.name, float(self.count % 2)))
        return rewards


@pytest.mark.peers
@pytest.mark.skipif(find_spec("trl") is None, reason="needs trl (a dev dependency)")
def test_two_steps_of_the_real_trainer(tmp_path, monkeypatch):
    """None rows get advantage 0, the others are centred without them, and all of it is logged."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    folder = tiny_model(tmp_path / "model")
    traces = tmp_path / "traces.jsonl"
    prompt = [{"role": "user", "content": "3 + 4?"}]
    data = Dataset.from_dict({"prompt": [prompt] * 4, "answer": ["7"] * 4})
    config = GRPOConfig(
        output_dir=str(tmp_path / "out"),
        max_steps=2,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=6,
        beta=0.0,
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
    )
    scorer = Wayward()
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        reward_funcs=as_trl(scorer, trace=traces),
        args=config,
        train_dataset=data,
        processing_class=AutoTokenizer.from_pretrained(folder),
    )
    groups = []
    score = trainer._generate_and_score_completions

    def listening(inputs):
        batch = score(inputs)
        groups.append(batch["advantages"].tolist())
        return batch

    trainer._generate_and_score_completions = listening
    trainer.train()

    assert trainer.state.global_step == 2
    assert scorer.count == 8
    # Rewards are 1, 0, 1, None: mean 2/3 and deviation 0.577 of the three that have one.
    mean, deviation = 2 / 3, 3**-0.5
    high, low = (1 - mean) / deviation, -mean / deviation
    assert len(groups) == 2
    for group in groups:
        assert group == pytest.approx([high, low, high, 0.0], abs=1e-3)
    logs = [row for row in trainer.state.log_history if "wayward/valid" in row]
    assert [row["wayward/valid"] for row in logs] == [0.75, 0.75]
    assert [row["wayward/status/parse_error"] for row in logs] == [0.25, 0.25]
    assert [row["rewards/wayward/mean"] for row in logs] == pytest.approx([mean, mean])
    extra = trainer._logs["extra"]  # TRL keeps the last batch
    assert list(extra["wayward/status"]) == ["ok", "ok", "ok", "parse_error"]
    kept = list(read_traces(traces))
    assert len(kept) == 8
    assert [trace.key for trace in kept[4:]] == list(extra["wayward/trace"])
    assert kept[3].reward.reason == "no verdict"


class TwoTurns:
    """Answers the first reply with a question; the second one ends it. Fails when told to."""

    tools = ()

    def __init__(self, fails=False):
        self.turns, self.fails = 0, fails

    async def reset(self, task, seed):
        self.word = task.fields.get("word", "none")
        return Observation()

    async def step(self, reply):
        self.turns += 1
        if self.fails and self.turns == 2:
            raise OSError("lost")
        said = Message("user", f"and {self.word}?")
        return Observation((said,), self.turns == 2, {"turns": 1.0})


@pytest.mark.peers
@pytest.mark.skipif(find_spec("trl") is None, reason="needs trl (a dev dependency)")
@pytest.mark.parametrize("fails", [False, True])
def test_a_rollout_of_ours_in_the_real_trainer(tmp_path, monkeypatch, fails):
    """Observations are masked, rewards are the environment's, and a failed rollout has none."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    folder = tiny_model(tmp_path / "model")
    prompt = [{"role": "user", "content": "3 + 4?"}]
    config = GRPOConfig(
        output_dir=str(tmp_path / "out"), max_steps=1, per_device_train_batch_size=4,
        num_generations=4, max_completion_length=8, beta=0.0, report_to=[], use_cpu=True,
        bf16=False, gradient_checkpointing=False, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    made = iter(range(100))

    def make():
        # The first one is the trial before the first rollout.
        return TwoTurns(fails=fails and next(made) == 1)

    task = Task("t1", (Message("user", "3 + 4?"),), {"word": "now"})
    settings = EnvRollout(path="given", turn_tokens=4)
    play = as_trl_rollout(env_rollout(make, settings=settings), tasks=[task])
    outputs, batches = [], []

    def listening(prompts, trainer):
        outputs.append(play(prompts, trainer))
        return outputs[-1]

    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        reward_funcs=as_trl(
            build_all([msgspec.convert({"kind": "env", "name": "turns"}, RewardConfig)])
        ),
        args=config,
        train_dataset=Dataset.from_dict({"prompt": [prompt] * 4}),
        processing_class=AutoTokenizer.from_pretrained(folder),
        rollout_func=listening,
    )
    score = trainer._generate_and_score_completions
    trainer._generate_and_score_completions = lambda inputs: (
        batches.append(score(inputs)) or batches[-1]
    )
    trainer.train()

    (output,), (batch,) = outputs, batches
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for place, (ids, mask) in enumerate(
        zip(output["completion_ids"], output["env_mask"], strict=True)
    ):
        assert len(ids) == len(mask) == len(output["logprobs"][place])
        if fails and place == 0:
            assert (mask, output["burnish_rollout"][place]["finish"]) == ([0], "error")
            continue
        masked = tokenizer.decode([t for t, m in zip(ids, mask, strict=True) if not m])
        assert "and now?" in masked
        assert sum(mask) <= 8
        assert all(p < 0 for p, m in zip(output["logprobs"][place], mask, strict=True) if m)
    # TRL pads its mask with ones; the completion's own mask takes those out again.
    trained = batch["tool_mask"] * batch["completion_mask"]
    assert trained.sum().item() == sum(map(sum, output["env_mask"]))
    assert batch["advantages"].tolist() == [0.0] * 4  # everybody had two turns, or no value
    logged = next(row for row in trainer.state.log_history if "total/valid" in row)
    assert logged["total/valid"] == (0.75 if fails else 1.0)
    assert logged["rewards/total/mean"] == pytest.approx(2.0)


def test_failures_are_counted_by_status():
    metrics = {}
    texts = ["timeout", "a", "timeout", "refused"]
    as_trl(Fussy())(
        prompts=["p"] * 4, completions=texts, log_metric=metrics.__setitem__, log_extra=None
    )
    assert metrics == {
        "fussy/valid": 0.25,
        "fussy/status/timeout": 0.5,
        "fussy/status/refused": 0.25,
    }
