"""`burnish view` as a process: it starts, answers over loopback, and stops on Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys

import httpx

from burnish.cli.entry import run


def test_the_command_serves_until_ctrl_c(runs, tmp_path):
    words = [sys.executable, "-m", "burnish", "view", "first", "--runs", str(runs)]
    environment = {**os.environ, "BURNISH_CACHE": str(tmp_path / "cache")}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*words, "--no-browser"], stdout=pipe, stderr=pipe, text=True, env=environment
    ) as server:
        try:
            assert server.stdout is not None
            head, where = server.stdout.readline(), server.stdout.readline().strip()
            assert head.startswith("1 runs, read only")
            found = re.fullmatch(r"(http://127\.0\.0\.1:\d+)/\?token=([\w-]{43})", where)
            assert found is not None
            half = b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx: "
            flood = [_sent(int(found[1].rpartition(":")[2]), half) for _ in range(300)]
            with httpx.Client(base_url=found[1], timeout=300) as http:
                assert http.get("/").status_code == 403
                page = http.get(where, follow_redirects=True)
                assert page.status_code == 200
                assert page.url.query == b""
                (line,) = http.get("/api/v1/runs").json()["runs"]
                assert line["key"] == "first"
                assert http.get("/api/v1/runs/second").status_code == 404
                assert "server" not in page.headers
            for one in flood:
                one.close()
            server.send_signal(signal.SIGINT)
            out, err = server.communicate(timeout=300)
        finally:
            server.kill()
    assert (server.returncode, err) == (0, "")
    assert out.endswith("stopped.\n")


def _sent(port: int, data: bytes) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), timeout=60)
    made.sendall(data)
    return made


def test_mistakes_are_one_line(capsys, tmp_path):
    assert run(["view", "--runs", str(tmp_path / "nowhere"), "--no-browser"]) == 2
    assert run(["view", "no-such-run", "--runs", str(tmp_path), "--no-browser"]) == 2
    err = capsys.readouterr().err.splitlines()  # type: ignore[attr-defined]
    assert len(err) == 2
    assert "with runs here" in err[0]
    assert "no run 'no-such-run'" in err[1]


def test_a_port_in_use_is_one_line(runs, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code = run(["view", "--runs", str(runs), "--no-browser", "--port", str(port)])
    assert code == 2
    assert f"port {port} on 127.0.0.1 cannot be used" in capsys.readouterr().err  # type: ignore[attr-defined]
