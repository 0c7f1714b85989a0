from functools import partial

import anyio
import pytest
import torch
from lab.dir.best_of_n import best_of_n_curve
from starlette.testclient import TestClient
from test_process_reward_model import run_of
from training_cases import finish, reward, trainer

import burnish
from burnish.engines.server import create_app
from burnish.lm.folder import load_model
from burnish.lm.scalar_head import score_rows, step_row
from burnish.numbers import sigmoid
from burnish.records import Message, Response, Reward, Task
from burnish.rewards import best_of_n, build, checked, score_groups
from burnish.rewards.models.trained_model import ProcessRewardModelConfig
from burnish.store import RunStore
from burnish.training.weighing import Segmenter, step_scores

TASK = Task("t", (Message("user", "ball 1?"),))
TEXTS = ["red\n\nblue", "red\n\nBLUE\n\nred", "green", "RED"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run that learned to dislike steps in capitals."""
    folder = tmp_path_factory.mktemp("prm")
    finish(run_of(folder, {"steps": 30, "optimiser": {"learning_rate": 3e-3}}, batch=8))
    return folder / "run"


def last(run):
    return sorted((run / "checkpoints").glob("step-*"))[-1]


def scorer_of(run, **more):
    return build(ProcessRewardModelConfig(path=str(run), **more))


def responses(texts):
    return [Response(str(i), text) for i, text in enumerate(texts)]


def direct(run, text):
    """The probability of each step, computed as the end of a row of its own."""
    loaded = load_model(last(run), device="cpu")
    steps = text.split("\n\n")
    rows = [
        step_row(loaded.tokenizer, TASK.messages, steps[: k + 1], "\n\n").ids
        for k in range(len(steps))
    ]
    return [sigmoid(score_rows(loaded, [row])[0]) for row in rows]


def test_each_step_is_a_part_and_what_follows_does_not_change_it(run):
    found = burnish.score({"kind": "process_reward_model", "path": str(run)}, "ball 1?", TEXTS)
    for text, one in zip(TEXTS, found, strict=True):
        values = [part.value for part in one.reward.parts]
        assert values == pytest.approx(direct(run, text), abs=1e-5)
        assert [part.evidence[0].observation for part in one.reward.parts] == text.split("\n\n")
        assert one.value == min(values)
    assert found[0].value > 0.5 > found[1].value
    lines = [one.observation for one in found[1].reward.evidence]
    assert lines[0] == "min of 3 steps"
    assert lines[1].startswith("step 2 is the first below ")
    assert found[0].reward.evidence[1].observation.startswith("no step is below ")


@pytest.mark.parametrize("aggregate", ["min", "product", "last", "mean"])
def test_values_are_the_same_in_any_company(run, aggregate):
    scorer = scorer_of(run, aggregate=aggregate)

    async def alone_and_together():
        one = await checked(scorer, TASK, responses(TEXTS))
        return one, await score_groups(scorer, [(TASK, responses([text])) for text in TEXTS])

    together, alone = anyio.run(alone_and_together)
    assert [r.value for r in together] == pytest.approx([g[0].value for g in alone], abs=1e-5)
    steps = direct(run, TEXTS[1])
    wanted = {
        "min": min(steps),
        "product": steps[0] * steps[1] * steps[2],
        "last": steps[2],
        "mean": sum(steps) / 3,
    }
    assert together[1].value == pytest.approx(wanted[aggregate], abs=1e-5)


def test_transformers_reads_the_score_of_the_last_step(run):
    transformers = pytest.importorskip("transformers")
    folder = last(run)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = load_model(folder, device="cpu").tokenizer
    for text in TEXTS:
        ids = step_row(tokenizer, TASK.messages, text.split("\n\n"), "\n\n").ids
        with torch.no_grad():
            (score,) = model(torch.tensor([ids])).logits[0].tolist()
        assert sigmoid(score) == pytest.approx(direct(run, text)[-1], abs=1e-4)


def test_best_of_n_and_the_server_have_the_same_scores(run):
    scorer = scorer_of(run)
    chosen = anyio.run(partial(best_of_n, scorer, TASK, responses(TEXTS[::-1])))
    values = [r.value for r in anyio.run(partial(checked, scorer, TASK, responses(TEXTS)))]
    assert chosen.index == len(TEXTS) - 1 - values.index(max(values))
    body = {"task": {"prompt": "ball 1?"}, "responses": TEXTS}
    with TestClient(create_app(scorer), base_url="http://127.0.0.1") as client:
        reply = client.post("/score", json=body).json()
    assert [one["value"] for one in reply["rewards"]] == pytest.approx(values, abs=1e-5)
    curve = best_of_n_curve([values], [[float(text.islower()) for text in TEXTS]], [1, 4])
    assert (curve[0].gold.value, curve[1].gold.value) == (0.5, 1.0)


def test_without_steps_or_with_too_many_tokens_there_is_no_value(run):
    found = anyio.run(partial(checked, scorer_of(run), TASK, responses(["", "a" * 2000, "red"])))
    assert [one.status.value for one in found] == ["abstain", "abstain", "ok"]
    assert "has no steps" in found[0].reason
    assert "tokens, more than the model reads" in found[1].reason


def test_steps_are_those_of_the_last_reply(run):
    turns = [
        {"role": "assistant", "content": "RED"},
        {"role": "user", "content": "again"},
        {"role": "assistant", "content": "red\nblue"},
        {"role": "user", "content": "thanks"},
    ]
    talk = Response("r", "red\nblue", info={"messages": turns})
    found = anyio.run(partial(checked, scorer_of(run, split="lines"), TASK, [talk]))[0]
    assert [part.evidence[0].observation for part in found.parts] == ["red", "blue"]


class Letters:
    """A tokenizer with a token for each character."""

    def decode(self, ids):
        return "".join(map(chr, ids))


def test_tokens_are_numbered_by_their_step():
    segment = Segmenter(Letters(), (), "blank_lines")
    assert segment.number([ord(c) for c in "ab\n\nc"]) == [0, 0, 0, 0, 1]
    assert segment.number([ord(c) for c in "\n\n"]) == [-1, -1]
    pairs = type(
        "Pairs", (), {"decode": lambda self, ids: "".join("?a\n\nb"[i : i + 1] for i in ids)}
    )
    assert Segmenter(pairs(), (), "lines").number([1, 2, 4]) == [0, 0, 1]


def scored(*values, name="prm", value=0.5):
    parts = tuple(Reward(f"step {k}", one) for k, one in enumerate(values))
    return Reward("total", value, parts=(Reward(name, value, parts=parts), Reward("other", 1.0)))


def test_scores_are_matched_with_steps_or_left_out(caplog):
    rewards = [scored(0.9, 0.1), scored(0.5), scored(0.2, 0.3)]
    segments = [[0, 0, 1], [0], [0, 1, 2]]
    found = step_scores(rewards, "prm", segments)
    nan = float("nan")
    wanted = torch.tensor([[0.9, 0.1], [0.5, nan], [nan, nan]], dtype=torch.float64)
    torch.testing.assert_close(found.steps_BJ, wanted, equal_nan=True)
    assert found.segments_BT.tolist() == [[0, 0, 1], [0, -1, -1], [-1, -1, -1]]
    assert "scored other steps than policy.advantage.split finds in 1 of 3 answers" in caplog.text


def test_an_answer_without_the_reward_has_no_scores_of_steps():
    # Its total has two parts as well: those are rewards, no steps.
    found = step_scores([scored(0.9, 0.1), scored(0.9, name="else")], "prm", [[0, 1], [0, 1]])
    assert found.steps_BJ[0].tolist() == [0.9, 0.1]
    assert found.steps_BJ[1].isnan().all()
    assert found.segments_BT.tolist() == [[0, 1], [-1, -1]]


def stepwise(*rewards, **more):
    return {"advantage": {"kind": "stepwise", "rewards": list(rewards), "split": "lines", **more}}


def test_a_policy_is_trained_with_credit_by_steps(tmp_path, run):
    rewards = [
        {"kind": "process_reward_model", "path": str(run), "name": "prm", "split": "lines"},
        reward("letters", weight=0.5),
    ]
    policy = stepwise("prm", "letters") | {"aggregate": {"mode": "token-mean"}}
    rollout = {"prompts": 2, "samples": 8, "max_tokens": 64}
    finish(
        trainer(tmp_path, {"rewards": rewards, "steps": 1, "policy": policy, "rollout": rollout})
    )
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        assert "reward/prm/mean" in store.metrics()
        samples = list(store.samples(step=0, split="train"))
        credit = {sample.id: store.token_values(sample.id).get("advantage") for sample in samples}
    several = [one for one in samples if len(one.reward.parts[0].parts) > 1 and credit[one.id]]
    assert several
    for sample in several:
        values = [part.value for part in sample.reward.parts[0].parts]
        # Each step has one advantage, which rises with its score.
        paid = list(dict.fromkeys(credit[sample.id]))
        assert len(paid) == len(set(values))
        assert sorted(range(len(paid)), key=paid.__getitem__) == sorted(
            range(len(values)), key=values.__getitem__
        )
