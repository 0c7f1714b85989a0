"""Who may ask an HTTP server on this machine: only this machine, by its own name, for itself.

    why = foreign(scope)        # another site's page, or another name for this machine
    why = malformed(scope)      # a request that two programs could read differently

A page of another site can make a browser send requests to a loopback port, and a name under an
attacker's control can be made to point at 127.0.0.1. `Host`, `Origin` and `Sec-Fetch-Site` tell
those requests from a user's own. `burnish view` checks them always, `burnish serve-reward` where no
token does it better.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
"""The usual names of this machine, for messages."""
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[0-9a-z.-]+)(?::([0-9]{1,5}))?", re.IGNORECASE | re.ASCII)

Scope = Mapping[str, Any]
"""What ASGI tells of a request."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def is_own_host(host: str) -> bool:
    """Whether a `Host` header is a loopback address or `localhost`, with or without a port.

    A name that merely begins or ends like one is another name; so is what is no host at all.
    """
    found = _HOST.fullmatch(host)
    if found is None or int(found[2] or 0) > 65535:
        return False
    name = found[1].lower().strip("[]")
    return is_loopback(name) and found[1].startswith("[") == (":" in name)


def foreign(scope: Scope) -> str:
    """Why a request comes from elsewhere; empty where it does not."""
    hosts = _values(scope, b"host")
    if len(hosts) != 1 or not is_own_host(hosts[0]):
        return f"this server answers to {', '.join(LOOPBACK)} only, not to another name."
    if not all(_is_own_origin(origin, hosts[0]) for origin in _values(scope, b"origin")):
        return "another site asks for this; refused."
    # A local page on another port is `same-site`, and as foreign as any.
    if not set(_values(scope, b"sec-fetch-site")) <= {"none", "same-origin"}:
        return "another site asks for this; refused. Open the address by hand."
    return ""


def malformed(scope: Scope) -> str:
    """Why a request could be read in two ways; empty where it cannot.

    An absolute target names a host of its own beside the `Host` header, and a length beside a
    chunked body lets a proxy and this server disagree on where the next request begins.
    """
    if not scope.get("raw_path", scope["path"].encode()).startswith(b"/"):
        return "the request's target is no path; expected one that begins with a slash."
    if _values(scope, b"content-length") and _values(scope, b"transfer-encoding"):
        return "the request has both content-length and transfer-encoding; expected one of them."
    return ""


def _values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]


def _is_own_origin(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme == "http" and parts.netloc.lower() == host.lower()
