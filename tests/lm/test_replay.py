"""Record and replay: equal answers, and an error that helps where nothing was recorded."""

import anyio
import pytest
from hypothesis import given, strategies as st

from burnish.errors import ModelError, StoreError, UserError
from burnish.lm import LM, Completion, Sampling, Scores
from burnish.lm.replay import RecordingLM, ReplayLM, ScriptedLM
from burnish.records import Finish, Message


class Scoring(ScriptedLM):
    """A script that can score, and whose completions have everything a completion can have."""

    async def sample(self, prompt, sampling):
        full = Completion("é\n", (1, 2), (-0.25, 0.0), Finish.LENGTH, (5,), ({7: -1.5}, {}), "m")
        return [full] * sampling.n

    async def score(self, prompt_ids, response_ids):
        return Scores(tuple(-float(i) for i in response_ids))


def user(text):
    return [Message("user", text)]


def recorded(path, lm=None):
    recorder = RecordingLM(
        lm or ScriptedLM(lambda messages, index: f"{messages[0].content}!"), path
    )
    anyio.run(recorder.sample, user("What is 3 + 4?"), Sampling(n=2, seed=1))
    anyio.run(recorder.sample, user("Name a colour."), Sampling())
    return recorder


def test_replay_repeats_what_was_recorded(tmp_path):
    path = tmp_path / "log" / "lm.jsonl"
    recorder = recorded(path)
    lm = ReplayLM(path)
    assert isinstance(lm, LM)
    assert isinstance(recorder, LM)
    assert lm.name == recorder.name == "scripted"
    for _ in range(2):
        completions = anyio.run(lm.sample, user("What is 3 + 4?"), Sampling(n=2, seed=1))
        assert [c.text for c in completions] == ["What is 3 + 4?!"] * 2


def test_every_field_and_scores_survive(tmp_path):
    path, model = tmp_path / "lm.jsonl", Scoring([])
    recorder = RecordingLM(model, path)

    async def ask(lm):
        return (
            await lm.sample([4, 5], Sampling(n=2)),
            await lm.score([1], [2, 3]),
        )

    assert anyio.run(ask, recorder) == anyio.run(ask, ReplayLM(path))


def test_a_missing_prompt_names_the_nearest_recorded_one(tmp_path):
    recorded(tmp_path / "lm")
    with pytest.raises(ModelError, match=r"nearest recorded prompt is 'What is 3 \+ 4\?'"):
        anyio.run(ReplayLM(tmp_path / "lm").sample, user("What is 3 + 5?"), Sampling(n=2, seed=1))


def test_of_equal_calls_the_first_counts(tmp_path):
    path = tmp_path / "lm"
    recorder = RecordingLM(ScriptedLM(["first", "second"]), path)
    for _ in range(2):
        anyio.run(recorder.sample, user("x"), Sampling())
    assert anyio.run(ReplayLM(path).sample, user("x"), Sampling())[0].text == "first"


def test_a_torn_line_is_forgotten_and_other_damage_is_not(tmp_path):
    path = tmp_path / "lm"
    recorded(path)
    data = path.read_bytes()
    path.write_bytes(data[:-5])
    lm = ReplayLM(path)
    assert len(anyio.run(lm.sample, user("What is 3 + 4?"), Sampling(n=2, seed=1))) == 2
    path.write_bytes(b"nonsense\n" + data)
    with pytest.raises(StoreError, match="line 1"):
        ReplayLM(path)


@given(st.lists(st.text(), min_size=2, max_size=2, unique=True), st.integers(0, 9))
def test_different_calls_never_share_an_answer(tmp_path_factory, prompts, seed):
    path = tmp_path_factory.mktemp("log") / "lm"
    recorder = RecordingLM(ScriptedLM(lambda messages, index: repr(messages)), path)
    for prompt in prompts:
        anyio.run(recorder.sample, user(prompt), Sampling(seed=seed))
    lm = ReplayLM(path)
    for prompt in prompts:
        (completion,) = anyio.run(lm.sample, user(prompt), Sampling(seed=seed))
        assert completion.text == repr(user(prompt))


@pytest.mark.parametrize("content", [b"a shopping list", b"milk\neggs", b'{"key": "x"}'])
def test_recording_into_a_file_that_is_no_log_is_refused_before_the_model_is_asked(
    tmp_path, content
):
    path, model = tmp_path / "list.txt", ScriptedLM(["hi"])
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"does not end as|the file is damaged"):
        RecordingLM(model, path)
    assert path.read_bytes() == content
    path.unlink()
    recorder = RecordingLM(model, path)
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"does not end as|the file is damaged"):
        anyio.run(recorder.sample, user("x"), Sampling())
    assert path.read_bytes() == content


def test_recording_goes_on_after_a_torn_line(tmp_path):
    path = tmp_path / "lm"
    recorded(path)
    data = path.read_bytes()
    path.write_bytes(data[:-5])
    recorded(path)
    assert path.read_bytes() == data[: data.index(b"\n") + 1] + data


def test_half_a_character_is_named_and_not_recorded(tmp_path):
    recorder = RecordingLM(ScriptedLM(["hi"]), tmp_path / "lm")
    with pytest.raises(UserError, match="half a character"):
        anyio.run(recorder.sample, user("x\ud800"), Sampling())
    assert not (tmp_path / "lm").exists()
