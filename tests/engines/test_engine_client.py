"""The remote scorer against a real server: the same rewards, retries, and failures with a name."""

import time
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest
from engine_cases import WEB, Broken, Fussy, LongerWins, serving, total, wait_until

from burnish.engines import RemoteScorer, ServeSettings
from burnish.errors import BoundaryError, RewardError, UserError
from burnish.lm.jobs import Limits
from burnish.lm.request_pool import RequestPool
from burnish.records import Finish, Message, Response, Status, Task
from burnish.rewards import Anchor, Cached, Scorer, Weighted, checked

QUICK = Limits(retries=2, backoff_base_s=0.01, backoff_cap_s=0.05, attempt_s=60, deadline_s=120)
TASK = Task("t1", (Message("user", "3 + 4?"),), {"answer": "7", "deep": {"a": [1, None]}})
RESPONSES = [Response("a", "it is 7"), Response("b", "8", Finish.LENGTH, 3, {"x": 1})]


def score(scorer, task=TASK, responses=RESPONSES, **more):
    return anyio.run(lambda: checked(scorer, task, responses, **more))


def test_remote_rewards_are_the_local_ones():
    local = total()
    with serving(total()) as url:
        remote = RemoteScorer(url)
        assert isinstance(remote, Scorer)
        assert (remote.name, remote.scope, remote.needs) == (local.name, local.scope, local.needs)
        assert score(remote) == score(local)
        assert score(remote) == score(local)  # a second event loop, the same scorer


def test_the_task_arrives_whole():
    scorer = Fussy()
    with serving(scorer) as url:
        score(RemoteScorer(url))
    assert scorer.tasks == [TASK]


def test_it_combines_like_any_scorer(tmp_path):
    with serving(Fussy()) as url:
        remote = RemoteScorer(url, weight=2.0)
        (reward, _) = score(Weighted([remote]))
        assert reward.value == 14.0
        cached = Cached(remote, tmp_path / "cache.db")
        first = score(cached)
    assert score(cached) == first  # the server is gone
    with serving(LongerWins()) as url:
        pair = Anchor(RemoteScorer(url), Response("r", "12"))
        assert [reward.value for reward in score(pair)] == [1.0, -1.0]


def test_no_server_is_told_at_once():
    with pytest.raises(BoundaryError, match="ConnectError"):
        RemoteScorer("http://127.0.0.1:9", limits=QUICK)


def test_a_server_that_dies_leaves_rewards_without_a_value():
    with serving(Fussy()) as url:
        remote = RemoteScorer(url, limits=QUICK)
    rewards = score(remote)
    assert [(r.value, r.status) for r in rewards] == [(None, Status.INFRA_ERROR)] * 2
    assert "gave up after 3 attempts" in rewards[0].reason


def test_a_busy_server_is_asked_again():
    slow = Fussy(held=True)
    with serving(slow, ServeSettings(concurrency=1, waiting=1)) as url:
        remote = RemoteScorer(url, limits=QUICK)
        body = {"task": {"prompt": "p"}, "responses": ["a"]}
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(WEB.post, f"{url}/score", json=body)
            wait_until(lambda: slow.running)
            second = pool.submit(score, remote)
            wait_until(lambda: remote.pool.totals.attempts == 1)
            time.sleep(0.5)  # its request is on the way; told to come back, it waits a second
            slow.free.set()
            assert first.result().status_code == 200
            (one, _) = second.result()
    assert one.value == 7.0
    assert remote.pool.totals.attempts == 2


def test_a_slow_server_is_a_timeout():
    with serving(Fussy(slow_s=600)) as url:
        remote = RemoteScorer(url, limits=QUICK)
        remote.pool = RequestPool(Limits(retries=0, attempt_s=0.2, deadline_s=0.5))
        rewards = score(remote)
    assert {reward.status for reward in rewards} == {Status.TIMEOUT}


def test_the_users_mistakes_stay_the_users():
    with serving(LongerWins()) as url:
        remote = RemoteScorer(url)

        async def three():
            return await remote.score(TASK, [Response(str(n), "x") for n in range(3)])

        with pytest.raises(UserError, match="expected 2"):
            anyio.run(three)
    with serving(Broken()) as url, pytest.raises(RewardError, match="returned list"):
        score(RemoteScorer(url))


def test_tokens(monkeypatch):
    secret = "0123456789abcdef"
    with serving(Fussy(), token=secret) as url:
        with pytest.raises(UserError, match="the token is missing or wrong"):
            RemoteScorer(url)
        monkeypatch.delenv("REWARD_TOKEN", raising=False)
        with pytest.raises(UserError, match="has no REWARD_TOKEN"):
            RemoteScorer(url, token_env="REWARD_TOKEN")
        monkeypatch.setenv("REWARD_TOKEN", secret)
        remote = RemoteScorer(url, token_env="REWARD_TOKEN")
        assert score(remote)[0].value == 7.0
        assert secret not in repr(remote)


def test_another_reward_behind_the_same_address_is_noticed():
    other = Fussy()
    other.fingerprint = "fussy-2"
    with serving(Fussy()) as url:
        remote = RemoteScorer(url, limits=QUICK)
        port = int(url.rpartition(":")[2])
    with serving(other, port=port), pytest.raises(RewardError, match="serves another reward"):
        score(remote)
