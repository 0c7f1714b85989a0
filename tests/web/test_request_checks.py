"""Who may ask a server on this machine: hosts, origins, and requests with two readings."""

from __future__ import annotations

import pytest

from burnish.web.asgi import foreign, is_own_host, malformed

OWN = "127.0.0.1:8000"


def a_request(*headers: tuple[str, str], target: str = "/about") -> dict[str, object]:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    return {"type": "http", "path": target, "raw_path": target.encode(), "headers": raw}


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:8000",
        "LocalHost:1",
        "[::1]:65535",
        "127.0.0.2:80",
    ],
)
def test_names_of_this_machine(host: str) -> None:
    assert is_own_host(host)
    assert foreign(a_request(("host", host))) == ""


@pytest.mark.parametrize(
    "host",
    [
        "",
        "[::1]evil",
        "[::1]:80x",
        "[::1]:",
        "[::1",
        "::1",
        "[::1%lo]",
        "127.0.0.1:",
        "127.0.0.1:65536",
        "127.0.0.1:８０",
        "127.0.0.1\n",
        "127.0.0.1.evil.com",
        "evil@127.0.0.1",
        "localhost:80@evil",
        "localhost.",
        "2130706433",
        "0.0.0.0",
    ],
)
def test_other_names_are_foreign(host: str) -> None:
    assert not is_own_host(host)
    if host.isascii():
        assert "answers to 127.0.0.1" in foreign(a_request(("host", host)))


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("host", OWN), ("host", "evil.example")],
        [("host", OWN), ("origin", "http://evil.example")],
        [("host", OWN), ("origin", "null")],
        [("host", OWN), ("origin", "https://127.0.0.1:8000")],
        [("host", OWN), ("origin", "http://127.0.0.1:8001")],
        [("host", OWN), ("origin", "http://[broken")],
        [("host", OWN), ("origin", f"http://{OWN}"), ("origin", "http://evil.example")],
        [("host", OWN), ("sec-fetch-site", "cross-site")],
        [("host", OWN), ("sec-fetch-site", "none"), ("sec-fetch-site", "same-site")],
    ],
)
def test_requests_of_other_sites(headers: list[tuple[str, str]]) -> None:
    assert foreign(a_request(*headers))


def test_the_own_page_may_ask() -> None:
    own = [("host", OWN), ("origin", f"http://{OWN}"), ("sec-fetch-site", "same-origin")]
    assert foreign(a_request(*own)) == ""


def test_a_request_with_two_readings() -> None:
    assert malformed(a_request()) == ""
    for target in ("http://evil.example/about", "*", "about", "evil.example:80"):
        assert "no path" in malformed(a_request(target=target))
    both = a_request(("content-length", "3"), ("transfer-encoding", "chunked"))
    assert "content-length and transfer-encoding" in malformed(both)
