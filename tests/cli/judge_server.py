"""A loopback server that speaks the OpenAI protocol and judges by a function of the prompt.

with JudgeServer(lambda prompt: '{"reasons": "x", "winner": "A"}') as server:
    server.model          # http://127.0.0.1:PORT/v1#scripted
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class JudgeServer:
    """Answers every chat request with what the function makes of its first message."""

    def __init__(self, judge: Callable[[str], str | bytes | None]) -> None:
        self.judge = judge
        """None: the server fails with status 500; bytes: the whole body of a reply."""
        self.prompts: list[str] = []

    def __enter__(self) -> Self:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                prompt = body["messages"][0]["content"]
                owner.prompts.append(prompt)
                text = owner.judge(prompt)
                code, reply = (
                    (500, {"error": {"message": "down"}})
                    if text is None
                    else (200, {} if isinstance(text, bytes) else _said(text))
                )
                data = text if isinstance(text, bytes) else json.dumps(reply).encode()
                self.send_response(code)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def model(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1#scripted"


def _said(text: str) -> dict[str, Any]:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": "stop",
    }
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    return {
        "id": "x", "object": "chat.completion", "model": "scripted", "choices": [choice],
        "usage": usage,
    }  # fmt: skip


def winner(letter: str) -> str:
    """A verdict as the judges ask for it."""
    return json.dumps({"reasons": f"{letter} it is", "winner": letter})


def shown(prompt: str) -> tuple[str, str]:
    """The two responses of a pair prompt, between their marked lines."""
    found = re.findall(
        r"^=== response [AB] [^\n]*===\n(.*?)\n=== end of response", prompt, re.S | re.M
    )
    assert len(found) == 2, prompt[:2000]
    return found[0], found[1]
