import socket

import pytest
from test_judges_resumed import Server, judge_of, judged
from training_cases import finish, merged, trainer

from burnish.errors import GuardTripped, NoServer
from burnish.lm.failures import NotSent, Reach, Rejected, TimedOut, Unreachable
from burnish.store import RunStore


@pytest.fixture
def closed_port():
    """A port of this machine that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        yield one.getsockname()[1]  # bound and not listening: connections are refused


def without_server(port, judge, prompts):
    url = f"http://127.0.0.1:{port}/v1"
    point = {"kind": "judge", "with": "point", "model": f"{url}#judge", "retries": 0}
    lm = {"kind": "versus", "judge": {"kind": "lm", "url": url, "model": "judge", "retries": 0}}
    # A reward that compares answers of a group has nothing to say about single ones.
    evaluation = {"prompts": prompts, "part": ""}
    return {"steps": 2, "rewards": [{"point": point, "lm": lm}[judge]], "evaluation": evaluation}


@pytest.mark.parametrize(("judge", "prompts"), [("point", 8), ("point", 0), ("lm", 0)])
def test_a_run_whose_judge_has_no_server_stops_with_its_address(
    tmp_path, closed_port, judge, prompts
):
    run = trainer(tmp_path, without_server(closed_port, judge, prompts))
    with pytest.raises(GuardTripped) as stopped:
        finish(run)
    line = str(stopped.value)
    assert line.startswith(f"no server answers: http://127.0.0.1:{closed_port}/v1")
    assert "ConnectError" in line
    assert "questions without an answer. Start the server and run the same command again" in line
    assert "\n" not in line
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        assert store.status() == "stopped"
        assert store.end().reason == line
        assert [event.message for event in store.events("guard")] == [line]
    assert not (tmp_path / "run" / "crash").exists()


class Flickering(Server):
    """Two calls find no server, one is answered, and so on."""

    asked = 0

    async def sample(self, prompt, sampling):
        self.asked += 1
        if self.asked % 3:
            raise NotSent("http://judge: the connection failed")
        return await super().sample(prompt, sampling)


def test_a_server_that_comes_back_in_between_is_not_punished(tmp_path, monkeypatch):
    server = Flickering()
    monkeypatch.setattr("burnish.lm.named.open_lm", lambda name, **_: server)
    run = trainer(tmp_path, merged(judged(), {"guards": {"failed_share": 1.0}, "steps": 2}))
    finish(run)
    assert server.asked > 9
    assert judge_of(run).spent.failed > 6


def test_only_calls_that_find_no_server_count():
    reach = Reach()
    reach.remedy = "Start it."
    for error in (NotSent("a"), TimedOut("late"), Unreachable("b")):
        reach.note(error)
    assert reach.unreached == 2
    with pytest.raises(NoServer, match=r"no server answers: c; stopped after 3 .* answer. Start"):
        reach.note(NotSent("c"))
    answered = Reach()
    answered.remedy = "Start it."
    answered.note(NotSent("a"))
    answered.note(Rejected("a refusal was written by a server"))
    for _ in range(9):
        answered.note(NotSent("b"))
    assert answered.unreached == 0
    tried = Reach()
    tried.remedy = "Start it."
    late = NotSent("d")
    late.attempts = 5  # with all its retries one question is enough
    with pytest.raises(NoServer, match="stopped after 1 question without an answer"):
        tried.note(late)
    quiet = Reach()  # outside of a run nobody is stopped
    for _ in range(9):
        quiet.note(NotSent("b"))
    assert quiet.unreached == 9
