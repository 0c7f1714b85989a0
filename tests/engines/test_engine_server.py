"""The reward server over real sockets: replies, limits, jobs, tokens, and a hostile client."""

import json
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from engine_cases import WEB, Broken, Fussy, serving, total, wait_until
from hypothesis import given, settings, strategies as st

from burnish.cli.serve_reward import scorer_of, token_of
from burnish.engines import ServeSettings, serve
from burnish.engines.server import is_loopback
from burnish.errors import UserError
from burnish.rewards import Weighted

SUM = {"task": {"prompt": "3 + 4?", "fields": {"answer": "7"}}, "responses": ["7", {"text": "8"}]}


def item(*texts, **task):
    return {"task": {"prompt": "p", **task}, "responses": list(texts)}


@pytest.fixture(scope="module")
def fussy():
    with serving(Fussy()) as url:
        yield url


def test_score_gives_the_whole_reward():
    with serving(total()) as url:
        reply = WEB.post(f"{url}/score", json=SUM)
        about = WEB.get(f"{url}/about").json()
    assert reply.status_code == 200
    body = reply.json()
    assert [reward["value"] for reward in body["rewards"]] == [1.0, 0.0]
    part = body["rewards"][0]["parts"][0]
    assert (part["name"], part["status"], part["evidence"][0]["visibility"]) == (
        "correct",
        "ok",
        "oracle",
    )
    assert about["needs"] == ["answer"]
    assert about["scope"] == "point"
    assert about["fingerprint"] == body["fingerprint"] != ""


def test_no_value_is_null_with_a_status(fussy):
    body = WEB.post(f"{fussy}/score", json=item("ab", "refused", "parse_error x")).json()
    told = [(reward["value"], reward["status"], reward["reason"]) for reward in body["rewards"]]
    assert told == [
        (2.0, "ok", ""),
        (None, "refused", "told to: refused"),
        (None, "parse_error", "told to: parse_error"),
    ]


def test_a_bug_in_the_scorer_is_a_status_not_a_crash(fussy):
    (reward,) = WEB.post(f"{fussy}/score", json=item("bug")).json()["rewards"]
    assert (reward["value"], reward["status"]) == (None, "reward_error")
    assert "ZeroDivisionError" in reward["reason"]


def test_a_breach_of_contract_is_told_as_one():
    with serving(Broken()) as url:
        reply = WEB.post(f"{url}/score", json=item("a"))
    assert reply.status_code == 500
    assert reply.json()["kind"] == "reward"
    assert "returned list [] for 1 responses" in reply.json()["error"]


def test_a_batch_keeps_its_order_and_a_bad_item_costs_only_itself(fussy):
    items = [item("a"), {"tsk": 1}, item("timeout"), item("bug"), item(), item("cc", id="t")]
    body = WEB.post(f"{fussy}/score_batch", json={"items": items}).json()
    results = body["results"]
    assert [list(result) for result in results] == [
        ["rewards"],
        ["error", "kind"],
        ["rewards"],
        ["rewards"],
        ["error", "kind"],
        ["rewards"],
    ]
    assert results[0]["rewards"][0]["value"] == 1.0
    assert "unknown field `tsk`" in results[1]["error"]
    assert results[2]["rewards"][0]["status"] == "timeout"
    assert "responses is empty" in results[4]["error"]
    assert results[5]["rewards"][0]["value"] == 2.0


def test_concurrency_is_bounded_over_all_requests():
    scorer = Fussy(slow_s=0.02)
    with serving(scorer, ServeSettings(concurrency=4)) as url:
        batch = {"items": [item(str(n)) for n in range(20)]}
        with ThreadPoolExecutor(3) as pool:
            replies = list(pool.map(lambda _: WEB.post(f"{url}/score_batch", json=batch), "abc"))
    assert all(len(reply.json()["results"]) == 20 for reply in replies)
    assert scorer.peak == 4


def test_a_deadline_is_a_timeout():
    with serving(Fussy(slow_s=30), ServeSettings(deadline_s=0.05)) as url:
        (reward,) = WEB.post(f"{url}/score", json=item("a")).json()["rewards"]
    assert (reward["value"], reward["status"]) == (None, "timeout")


def test_too_much_work_is_told_to_come_back():
    scorer = Fussy(held=True)
    with serving(scorer, ServeSettings(concurrency=1, waiting=2)) as url:
        batch = {"items": [item("a"), item("b")]}
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(WEB.post, f"{url}/score_batch", json=batch)
            wait_until(lambda: scorer.running)
            busy = WEB.post(f"{url}/score", json=item("c"))
            scorer.free.set()
            assert first.result().status_code == 200
        after = WEB.post(f"{url}/score", json=item("c"))
    assert (busy.status_code, busy.json()["kind"]) == (503, "busy")
    assert busy.headers["retry-after"] == "1"
    assert after.status_code == 200


def test_a_job_is_fetched_later():
    with serving(Fussy(slow_s=0.02)) as url:
        begun = WEB.post(f"{url}/jobs", json={"items": [item("a"), {"x": 1}, item("ccc")]})
        assert begun.status_code == 202
        assert begun.json()["results"] is None
        place = f"{url}/jobs/{begun.json()['id']}"
        wait_until(lambda: WEB.get(place).json()["state"] != "running")
        job = WEB.get(place).json()
        assert (job["state"], job["done"], job["total"]) == ("done", 3, 3)
        values = [result.get("rewards", [{}])[0].get("value") for result in job["results"]]
        assert values == [1.0, None, 3.0]
        assert WEB.delete(place).status_code == 204
        assert WEB.get(place).status_code == 404


def test_a_deleted_job_stops_and_frees_its_slots(monkeypatch):
    monkeypatch.setattr("burnish.engines.server.MOST_JOBS", 1)
    scorer = Fussy(held=True)
    with serving(scorer, ServeSettings(concurrency=1)) as url:
        name = WEB.post(f"{url}/jobs", json={"items": [item("a")] * 5}).json()["id"]
        wait_until(lambda: scorer.running)
        full = WEB.post(f"{url}/jobs", json={"items": [item("a")]})
        assert (full.status_code, full.json()["kind"]) == (503, "busy")
        assert WEB.delete(f"{url}/jobs/{name}").status_code == 204
        scorer.free.set()
        assert WEB.post(f"{url}/score", json=item("abc")).status_code == 200
        assert scorer.running == 0


def test_finished_jobs_are_forgotten_in_time(monkeypatch):
    monkeypatch.setattr("burnish.engines.server.KEEP_S", 0.05)
    with serving(Fussy()) as url:
        name = WEB.post(f"{url}/jobs", json={"items": [item("a")]}).json()["id"]
        wait_until(lambda: WEB.get(f"{url}/jobs/{name}").status_code == 404)


def test_the_token_guards_all_but_health():
    secret = "0123456789abcdef"
    with serving(Fussy(), token=secret) as url:
        assert WEB.get(f"{url}/health").json() == {"status": "ok"}
        for path in ("/about", "/jobs/x"):
            assert WEB.get(url + path).status_code == 401
        for wrong in ({}, {"authorization": "Bearer wrong"}, {"authorization": secret}):
            reply = WEB.post(f"{url}/score", json=item("a"), headers=wrong)
            assert reply.status_code == 401
            assert secret not in reply.text
        right = {"authorization": f"Bearer {secret}"}
        assert WEB.post(f"{url}/score", json=item("a"), headers=right).status_code == 200


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b'{"task": {}}', 422, "missing required field `responses`"),
        (b'{"task": {"prompt": 5}, "responses": ["a"]}', 422, "$.task.prompt"),
        (b'{"task": {}, "responses": ["a"], "extra": 1}', 422, "unknown field `extra`"),
        (b'{"task": {}, "responses": []}', 422, "responses is empty"),
        (
            b'{"task": {"prompt": "a", "messages": [{"role": "user", "content": "b"}]}, '
            b'"responses": ["a"]}',
            422,
            "both prompt and messages",
        ),
    ],
)
def test_a_bad_body_is_told_on_one_line(fussy, body, code, words):
    head = {"content-type": "application/json"}
    reply = WEB.post(f"{fussy}/score", content=body, headers=head)
    assert reply.status_code == code
    told = reply.json()
    assert words in told["error"]
    assert "\n" not in told["error"]
    assert told["kind"] == "user"


def test_limits_on_size_and_count(monkeypatch):
    for name, most in (("BYTES", 2000), ("ITEMS", 2), ("RESPONSES", 3)):
        monkeypatch.setattr(f"burnish.engines.server.MOST_{name}", most)
    with serving(Fussy()) as url:
        assert WEB.post(f"{url}/score", json=item("a" * 3000)).status_code == 413

        def stream():
            yield b'{"task": {}, "responses": ["'
            for _ in range(100):
                yield b"a" * 100

        head = {"content-type": "application/json"}
        assert WEB.post(f"{url}/score", content=stream(), headers=head).status_code == 413
        many = WEB.post(f"{url}/score_batch", json={"items": [item("a")] * 3})
        assert "expected at most 2" in many.json()["error"]
        four = WEB.post(f"{url}/score", json=item(*"abcd"))
        assert "expected at most 3" in four.json()["error"]
        assert WEB.post(f"{url}/score", json=item("a")).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "[::1]evil"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
    ],
)
def test_without_a_token_other_sites_and_names_are_refused(fussy, headers):
    for reply in (
        WEB.post(f"{fussy}/score", json=item("a"), headers=headers),
        WEB.post(f"{fussy}/jobs", json={"items": [item("a")]}, headers=headers),
        WEB.get(f"{fussy}/about", headers=headers),
        WEB.get(f"{fussy}/nothing", headers=headers),
        WEB.request("OPTIONS", f"{fussy}/score", headers=headers),
    ):
        assert (reply.status_code, reply.json()["kind"]) == (403, "user")
    own = {"host": "localhost:1", "origin": "http://localhost:1", "sec-fetch-site": "same-origin"}
    assert WEB.post(f"{fussy}/score", json=item("a"), headers=own).status_code == 200


def test_with_a_token_the_name_does_not_matter():
    headers = {"authorization": "Bearer 0123456789abcdef", "host": "rewards.example"}
    with serving(Fussy(), token="0123456789abcdef") as url:
        assert WEB.post(f"{url}/score", json=item("a"), headers=headers).status_code == 200


def test_a_client_that_hangs_up_leaves_the_server_whole(fussy):
    host, port = fussy.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as rude:
        rude.sendall(
            b"POST /score HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b'content-length: 500\r\n\r\n{"task"'
        )
    assert WEB.post(f"{fussy}/score", json=item("abc")).status_code == 200


def test_a_client_that_stops_waiting_ends_the_work():
    scorer = Fussy(held=True)
    with serving(scorer) as url:
        for path, body in (("/score", item("a")), ("/score_batch", {"items": [item("a")] * 3})):
            with pytest.raises(httpx.ReadTimeout):
                WEB.post(url + path, json=body, timeout=httpx.Timeout(120, read=0.3))
            wait_until(lambda: scorer.running == 0)
        scorer.free.set()
        assert WEB.post(f"{url}/score", json=item("abc")).status_code == 200


def test_an_open_address_needs_a_token():
    with pytest.raises(UserError, match="can be reached by others"):
        serve(Fussy(), host="0.0.0.0", port=0)
    assert [is_loopback(h) for h in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "host.org")] == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_a_port_that_is_taken_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} on 127.0.0.1.*0 finds a free one"):
            serve(Fussy(), port=port)


def test_words_are_a_recipe_a_scorer_or_a_function(tmp_path, monkeypatch):
    file = tmp_path / "mine.py"
    file.write_text(
        "from burnish.rewards import Numeric, NumericConfig\n"
        "scorer = Numeric(NumericConfig())\n"
        "number = 5\n"
        "def short(text):\n    return float(len(text) < 5)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert isinstance(scorer_of(["grpo", "rewards.0.weight=2"]), Weighted)
    assert scorer_of(["mine.py:scorer"]).needs == {"answer"}
    assert scorer_of([f"{file}:short"]).name == "short"
    assert scorer_of(["mine:short"]).name == "short"
    for words, told in (
        (["mine.py:scorrer"], "has no function 'scorrer'"),
        (["mine.py:number"], "which is no function"),
        (["min.py:x"], "Did you mean 'mine.py'"),
        (["mine.py"], "'mine.py' names no function"),
        (["nowhere.at_all:x"], "cannot be imported"),
        (["mine.py:scorer", "steps=2"], "settings belong to a recipe"),
    ):
        with pytest.raises(UserError, match=told):
            scorer_of(words)


def test_a_token_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("REWARD_TOKEN", "short")
    with pytest.raises(UserError, match="REWARD_TOKEN holds 5 characters"):
        token_of("REWARD_TOKEN")
    monkeypatch.setenv("REWARD_TOKEN", "0123456789abcdef\n")
    assert token_of("REWARD_TOKEN") == "0123456789abcdef"
    assert token_of("") == ""


def is_up(url):
    try:
        return WEB.get(f"{url}/health").status_code == 200
    except httpx.TransportError:
        return False


def test_the_command_serves_and_stops_gracefully(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import anyio\n"
        "async def slow(text):\n"
        "    open('begun', 'w').close()\n"
        "    await anyio.sleep(0.3)\n"
        "    return float(len(text))\n"
    )
    command = [sys.executable, "-m", "burnish", "serve-reward", "mine.py:slow"]
    server = subprocess.Popen(
        [*command, "--port", "0", "--json"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    try:
        ready = json.loads(server.stdout.readline())
        url = ready["url"]
        wait_until(lambda: is_up(url))
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(WEB.post, f"{url}/score", json=item("hello"))
            wait_until((tmp_path / "begun").exists)
            server.send_signal(signal.SIGTERM)
            reply = running.result()
        assert reply.json()["rewards"][0]["value"] == 5.0
        assert server.wait(120) in (0, -signal.SIGTERM)
    finally:
        server.kill()
        server.wait(10)
        server.stdout.close()


def test_no_reply_sends_a_client_to_another_address(fussy):
    assert WEB.get(f"{fussy}/health/").status_code == 404
    long = WEB.get(f"{fussy}/{'a' * 5000}")
    assert (long.status_code, len(long.text) < 300) == (404, True)


@given(st.binary(max_size=200))
@settings(max_examples=50)
def test_no_bytes_make_it_fail(fussy, body):
    head = {"content-type": "application/json"}
    reply = WEB.post(f"{fussy}/score", content=body, headers=head)
    assert reply.status_code in (200, 422)
