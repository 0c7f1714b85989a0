"""Start and stop the viewer's server.

with listening(port=0) as socket:
    address(socket, token)
    serve(viewer, token, socket)
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Iterator

from burnish.errors import UserError
from burnish.view.server.app import make_app
from burnish.view.server.routes import Viewer
from burnish.web_server import Bounds, make_server

HOST = "127.0.0.1"
STOP_S = 2
"""Open requests get so long when the server is stopped."""
CONNECTIONS = 128
"""Open at the same time; a browser uses six."""
NICE = 10


def new_token() -> str:
    """256 bits that nobody can guess."""
    return secrets.token_urlsafe(32)


@contextlib.contextmanager
def listening(port: int) -> Iterator[socket.socket]:
    """A socket on this machine only; port 0 takes any free one."""
    own = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        try:
            own.bind((HOST, port))
        except OSError as error:
            raise UserError(
                f"port {port} on {HOST} cannot be used: {error.strerror}. Take another: --port 0 "
                "finds a free one."
            ) from error
        own.listen(128)
        yield own
    finally:
        own.close()


def address(own: socket.socket, token: str) -> str:
    """What to open in a browser."""
    return f"http://{HOST}:{own.getsockname()[1]}/?token={token}"


def serve(viewer: Viewer, token: str, own: socket.socket) -> None:
    """Answer requests until Ctrl-C or a termination signal."""
    # Looking at a run must not slow it down: where cores are short, training goes first.
    with contextlib.suppress(OSError):
        os.nice(NICE)
    app = make_app(viewer, token)
    try:
        make_server(app, Bounds(connections=CONNECTIONS), stop_s=STOP_S).run(sockets=[own])
    finally:
        viewer.close()
