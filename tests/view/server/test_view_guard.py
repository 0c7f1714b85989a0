"""Who is let in: the token, the host, the origin; what every answer carries."""

import pytest
from starlette.testclient import TestClient
from viewed_runs import BASE, TOKEN

from burnish.view.pages.runs import Runs
from burnish.view.server.app import make_app
from burnish.view.server.routes import ENDPOINTS, Viewer


@pytest.fixture
def stranger(runs):
    """A client without the token, at the right address."""
    return TestClient(make_app(Viewer(Runs(folder=runs)), TOKEN), base_url=BASE)


@pytest.mark.parametrize("path", ["/", "/runs/first", "/static/index.html", "/favicon.ico"])
def test_pages_need_the_token(stranger, path):
    answer = stranger.get(path)
    assert answer.status_code == 403
    assert answer.text.startswith("burnish view: no token")
    assert answer.text.count("\n") == 1


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda e: e.path)
def test_every_route_needs_the_token(stranger, endpoint):
    path = f"/api/v1{endpoint.path}".replace("{run}", "first").replace("{bench}", "x")  # type: ignore[attr-defined]
    assert stranger.get(path).status_code == 403
    wrong = stranger.get(path, headers={"authorization": "Bearer wrong"})
    assert (wrong.status_code, list(wrong.json())) == (403, ["error"])


def test_the_token_comes_once_in_the_address_and_then_as_a_cookie(stranger):
    first = stranger.get(f"/runs/a%2Fb?token={TOKEN}&step=3", follow_redirects=False)
    assert first.status_code == 303
    assert first.headers["location"] == "/runs/a%2Fb?step=3"
    cookie = first.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert stranger.get("/api/v1/runs").status_code == 200
    assert stranger.get("/?token=wrong", follow_redirects=False).status_code == 403


def test_the_redirect_stays_on_this_site(stranger):
    answer = stranger.get(f"{BASE}//evil.example/x?token={TOKEN}", follow_redirects=False)
    assert answer.headers["location"] == "/evil.example/x"


def test_requests_of_other_sites_are_refused_even_with_the_token(client):
    headers = {"origin": "https://evil.example"}
    assert client.http.get("/api/v1/runs", headers=headers).status_code == 403
    assert client.http.get(f"/?token={TOKEN}", headers=headers).status_code == 403


def test_the_own_page_may_ask(client):
    headers = {"origin": BASE, "sec-fetch-site": "same-origin"}
    answer = client.http.get("/api/v1/runs", headers=headers)
    assert answer.status_code == 200
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_a_request_with_two_lengths_ends_its_connection(client):
    both = {"content-length": "0", "transfer-encoding": "chunked"}
    answer = client.http.get("/api/v1/runs", headers=both)
    assert (answer.status_code, answer.headers["connection"]) == (400, "close")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_only_reading_is_allowed(client, method):
    for path in ("/api/v1/runs", "/", "/static/index.html"):
        assert client.http.request(method, path).status_code == 405


@pytest.mark.parametrize("path", ["/", "/api/v1/runs", "/api/v1/nothing", "/static/no.js"])
def test_every_answer_carries_the_strict_headers(client, path):
    headers = client.http.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server/app.py", "/static/%2e%2e/server/app.py", "/static/..%2fserver%2fapp.py",
        "/static//etc/passwd", "/static/%2fetc%2fpasswd", "/static/..\\..\\x",
    ],
)  # fmt: skip
def test_no_path_leads_out_of_the_static_folder(client, path):
    answer = client.http.get(path)
    assert answer.status_code in (200, 404)
    assert "import" not in answer.text
    assert "root:" not in answer.text


@pytest.mark.parametrize(
    "name", ["..", "%2e%2e", "..%2f..", "%2fetc", "first%2f..%2fsecond", "first%00", "no-such-run"]
)
def test_a_run_is_looked_up_and_never_a_path(client, name):
    answer = client.http.get(f"/api/v1/runs/{name}/pulse")
    assert answer.status_code in (400, 404)
    assert list(answer.json()) == ["error"]


def test_an_answer_that_is_known_is_not_sent_again(client):
    first = client.http.get("/api/v1/runs/first/pulse")
    client.indexed("first")
    first = client.http.get("/api/v1/runs/first/pulse")
    again = client.http.get(
        "/api/v1/runs/first/pulse", headers={"if-none-match": first.headers["etag"]}
    )
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example:8000",
        "",
        "0.0.0.0",
        "[::1]evil",
        "localhost:80@evil",
    ],
)
def test_another_name_for_this_machine_is_refused(client, host: str) -> None:
    answer = client.http.get("/api/v1/runs", headers={"host": host})
    assert answer.status_code == 403
    assert "answers to 127.0.0.1" in answer.json()["error"]


@pytest.mark.parametrize("host", ["localhost:9000", "LOCALHOST", "[::1]:8000", "127.0.0.1"])
def test_loopback_names_pass_whatever_the_port(client, host: str) -> None:
    assert client.http.get("/api/v1/runs", headers={"host": host}).status_code == 200
