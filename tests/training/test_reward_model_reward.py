import json
import shutil
from functools import partial

import anyio
import pytest
from safetensors.torch import load_file, save_file
from starlette.testclient import TestClient
from test_reward_model import run_of
from training_cases import finish, trainer

import burnish
from burnish.engines.server import create_app
from burnish.errors import UserError
from burnish.lm.folder import load_model
from burnish.lm.scalar_head import score_rows, scored_ids
from burnish.records import Message, Response, Task
from burnish.rewards import best_of_n, build, checked, score_groups
from burnish.rewards.models.trained_model import RewardModelConfig, plain_text
from burnish.store import RunStore

TASK = Task("t", (Message("user", "ball 1?"),))
TEXTS = ["red red", "GREEN", "**GREEN**", "blue", ""]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run that learned to like capitals."""
    folder = tmp_path_factory.mktemp("rm")
    finish(run_of(folder, {"steps": 14, "optimiser": {"learning_rate": 3e-3}}, batch=8))
    return folder / "run"


def scorer_of(run, **more):
    return build(RewardModelConfig(path=str(run), **more))


def responses(texts):
    return [Response(str(i), text) for i, text in enumerate(texts)]


def direct(run, texts):
    """Scores of single rows."""
    loaded = load_model(sorted((run / "checkpoints").glob("step-*"))[-1], device="cpu")
    talks = [(*TASK.messages, Message("assistant", text)) for text in texts]
    return [score_rows(loaded, [scored_ids(loaded.tokenizer, talk)])[0] for talk in talks]


def test_scores_are_those_of_the_model_in_any_company(run):
    expected = direct(run, TEXTS)
    scorer = scorer_of(run)

    async def alone_and_together():
        one = await checked(scorer, TASK, responses(TEXTS))
        items = [(TASK, responses([text])) for text in TEXTS]
        return one, await score_groups(scorer, items)

    together, alone = anyio.run(alone_and_together)
    assert [reward.value for reward in together] == pytest.approx(expected, abs=1e-5)
    assert [group[0].value for group in alone] == pytest.approx(expected, abs=1e-5)
    assert expected[1] > expected[0]


def test_calls_that_wait_together_are_one_batch(run, monkeypatch):
    scorer = scorer_of(run, explain=False)
    sizes = []
    own = scorer.scores
    monkeypatch.setattr(scorer, "scores", lambda talks: (sizes.append(len(talks)), own(talks))[1])
    items = [(TASK, responses([text, text])) for text in TEXTS]
    anyio.run(partial(score_groups, scorer, items))
    assert sizes == [10]


def test_a_bad_text_fails_its_own_call_alone(run, monkeypatch):
    scorer = scorer_of(run, explain=False)
    own = scorer.scores

    def scores(talks):
        if any(talk[-1].text == "bad" for talk in talks):
            raise ValueError("bad text")
        return own(talks)

    monkeypatch.setattr(scorer, "scores", scores)
    texts = ["red red", "bad", "blue"]
    found: dict[str, object] = {}

    async def ask(text):
        try:
            found[text] = (await scorer.score(TASK, responses([text])))[0].value
        except ValueError as error:
            found[text] = str(error)

    async def together():
        async with anyio.create_task_group() as group:
            for text in texts:
                group.start_soon(ask, text)

    anyio.run(together)
    assert found.pop("bad") == "bad text"
    wanted = dict(zip(["red red", "blue"], direct(run, ["red red", "blue"]), strict=True))
    assert found == pytest.approx(wanted, abs=1e-5)


def test_a_score_explains_itself(run):
    found = burnish.score({"kind": "reward_model", "path": str(run)}, "ball 1?", TEXTS)
    marked = found[2].reward.evidence
    lines = [one.observation for one in marked]
    assert lines[0].startswith("score ")
    assert "of 8 held-out answers" in lines[1] or "held-out answers" in lines[1]
    value, plain = direct(run, ["**GREEN**", "GREEN"])
    assert f"markdown {value - plain:+.3g}" in lines[2]
    assert "for twice the text" in lines[3]
    assert not any("markdown" in one.observation for one in found[1].reward.evidence)
    places = [
        one.value
        for one in (
            burnish.score(
                {"kind": "reward_model", "path": str(run), "scale": "percentile"}, "ball 1?", TEXTS
            )
        )
    ]
    assert all(0 <= place <= 1 for place in places)
    assert places[1] > places[0]


def test_best_of_n_and_the_server_have_the_same_scores(run):
    scorer = scorer_of(run)
    chosen = anyio.run(partial(best_of_n, scorer, TASK, responses(TEXTS[:2])))
    assert chosen.index == 1
    body = {"task": {"prompt": "ball 1?"}, "responses": TEXTS}
    with TestClient(create_app(scorer), base_url="http://127.0.0.1") as client:
        reply = client.post("/score", json=body).json()
    got = [reward["value"] for reward in reply["rewards"]]
    assert got == pytest.approx(direct(run, TEXTS), abs=1e-5)


def test_a_policy_is_trained_with_it(tmp_path, run):
    reward = {"kind": "reward_model", "path": str(run), "name": "likes"}
    finish(trainer(tmp_path, {"rewards": [reward], "steps": 2}))
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        assert "reward/likes/mean" in store.metrics()
        sample = next(iter(store.samples(step=0, split="train")))
    assert "score" in sample.reward.parts[0].evidence[0].observation


@pytest.mark.parametrize("inside", ["", "gate."])
def test_a_run_is_not_continued_with_other_weights_of_its_reward(tmp_path, run, inside):
    """Also where it is a part of another reward."""
    shutil.copytree(run, tmp_path / "rm")
    reward = {"kind": "reward_model", "path": str(tmp_path / "rm")}
    if inside:
        reward = {"kind": "gate", "hard": {"kind": "length", "max": 99}, "then": reward}
    tables = {"rewards": [reward], "steps": 1}
    finish(trainer(tmp_path, tables))
    last = sorted((tmp_path / "rm" / "checkpoints").glob("step-*"))[-1] / "model.safetensors"
    last.write_bytes(last.read_bytes()[:-4] + b"\0\0\1\0")
    what = f"other contents of {inside}reward_model/model.safetensors"
    with pytest.raises(UserError, match=what):
        trainer(tmp_path, tables)


def test_an_answer_that_is_too_long_has_no_value(run):
    found = anyio.run(partial(checked, scorer_of(run), TASK, responses(["a" * 2000, "A"])))
    assert [one.status.value for one in found] == ["abstain", "ok"]
    assert "tokens, more than the model reads" in found[0].reason


def test_markdown_is_taken_off_and_nothing_else():
    text = "# Head\n\n- **bold** one\n2. `code` and *it*\n> said\n```py\nx = 2 * 3 * 4\n```\n"
    plain = "Head\n\nbold one\ncode and it\nsaid\nx = 2 * 3 * 4\n"
    assert plain_text(text) == plain
    assert plain_text(plain) == plain
    assert plain_text("3 * 4 = 12, a_b_c, x - y") == "3 * 4 = 12, a_b_c, x - y"
    assert plain_text("__init__ and **two** of **them**") == "init and two of them"
    # Marks that are never closed are looked at once each; in squares this would take minutes.
    for mark in ("__a ", "**a "):
        assert plain_text(mark * 50_000) == mark * 50_000


def test_a_damaged_card_or_head_is_refused_when_the_reward_is_made(tmp_path, run):
    last = sorted((run / "checkpoints").glob("step-*"))[-1]
    shutil.copytree(last, tmp_path / "rm")
    card = json.loads((tmp_path / "rm" / "reward_model.json").read_text())
    for spoilt in ({"percentiles": []}, {"pairs": 0}):
        (tmp_path / "rm" / "reward_model.json").write_text(json.dumps({**card, **spoilt}))
        with pytest.raises(UserError, match=r"reward_model.json is damaged"):
            scorer_of(tmp_path / "rm")
    (tmp_path / "rm" / "reward_model.json").write_text(json.dumps(card))
    scorer_of(tmp_path / "rm")
    file = tmp_path / "rm" / "model.safetensors"
    weights = load_file(file)
    for head in (weights["score.weight"] * float("nan"), weights["score.weight"][:, :-1].clone()):
        save_file({**weights, "score.weight": head}, file)
        with pytest.raises(UserError, match=r"score.weight is damaged"):
            scorer_of(tmp_path / "rm")
    file.write_bytes(b"no weights")
    with pytest.raises(UserError, match="is not a safetensors file"):
        scorer_of(tmp_path / "rm")
