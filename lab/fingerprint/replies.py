"""Recorded replies of judges: which one is given depends on the words of the question alone."""

from __future__ import annotations

import json
import re
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("replies.json")
MARK = re.compile(r"\bmark ([0-9a-f]{4,})|=== .*? ([0-9a-f]{4,}) ===")
PICTURE = re.compile(r"calls: picture (\d+)")


def reply_to(prompt: str) -> str:
    """The recorded reply to a question, with the question's own mark in it."""
    for wanted, replies in json.loads(FILE.read_text(encoding="utf-8")):
        if wanted in prompt:
            said = replies[zlib.crc32(prompt.encode()) % len(replies)]
            text = said if isinstance(said, str) else json.dumps(said)
            return _filled(text, prompt)
    return "I cannot say."


def _filled(text: str, prompt: str) -> str:
    mark, picture = MARK.search(prompt), PICTURE.search(prompt)
    text = text.replace("MARK", (mark[1] or mark[2]) if mark else "")
    return text.replace('"PICTURE"', picture[1] if picture else "1")


@contextmanager
def server() -> Iterator[str]:
    """The address of a chat server that gives the recorded replies."""
    opened = ThreadingHTTPServer(("127.0.0.1", 0), _Chat)
    thread = threading.Thread(target=opened.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{opened.server_port}/v1"
    finally:
        opened.shutdown()
        opened.server_close()


class _Chat(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = reply_to(said(asked["messages"]))
        message = {"role": "assistant", "content": text}
        choices = [
            {"index": number, "message": message, "finish_reason": "stop"}
            for number in range(asked.get("n") or 1)
        ]
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        body = json.dumps(
            {"id": "1", "model": "judge", "choices": choices, "usage": usage}
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def said(messages: Sequence[Any]) -> str:
    """All words of a conversation, in order."""
    texts = []
    for one in messages:
        content = one["content"] if isinstance(one, dict) else one.content
        parts = [content] if isinstance(content, str) else content
        texts += [
            p if isinstance(p, str) else p.get("text", "") if isinstance(p, dict) else str(p)
            for p in parts
        ]
    return "\n".join(texts)
