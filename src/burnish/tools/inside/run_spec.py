"""What the parent asks a sandboxed process to do: one record, sent as JSON over a pipe."""

from __future__ import annotations

import json
from typing import NamedTuple


class Bounds(NamedTuple):
    """Limits in the units of the kernel."""

    cpu_s: int
    memory_bytes: int
    disk_bytes: int
    files: int
    processes: int
    threads: int
    open_files: int
    socket_pairs: bool
    """Whether pairs of streams, which event loops need, fit into the memory limit."""


class RunSpec(NamedTuple):
    """One run: which layers to put on, what may be read, and which role to play."""

    role: str
    """`program`, `candidate` or `examiner`."""
    code: str
    bounds: Bounds
    layers: tuple[str, ...]
    """Names of the layers to put on; one that cannot be put on ends the run before the code."""
    user_namespace: bool
    readable: tuple[str, ...]
    """Files and folders of the interpreter and the system that can be read."""
    hidden: tuple[str, ...]
    """Folders inside readable ones that cannot."""
    links: tuple[tuple[str, str], ...]
    """Other names of readable paths."""
    import_paths: tuple[str, ...]
    work: str
    """The folder that can be written."""
    files: tuple[tuple[str, str], ...] = ()
    """Relative names and texts, put into the work folder."""
    talk: tuple[int, int] | None = None
    """Descriptors to read from and write to: the other process of an examination."""
    answer: int | None = None
    """Descriptor of the examiner's notes."""
    tests: tuple[str, ...] = ()
    setup: str = ""
    entry_point: str = ""
    keep_going: bool = False
    """Count every assert instead of stopping at the first failure."""

    @property
    def has_own_table(self) -> bool:
        """Whether the kernel ends every process of the run together with the keeper."""
        return "namespaces" in self.layers or "bubblewrap" in self.layers


def to_json(spec: RunSpec) -> bytes:
    return json.dumps(spec._replace(bounds=spec.bounds._asdict())._asdict()).encode()  # type: ignore[arg-type]


def from_json(data: bytes) -> RunSpec:
    fields = json.loads(data)
    fields["bounds"] = Bounds(**fields["bounds"])
    return RunSpec(**fields)
