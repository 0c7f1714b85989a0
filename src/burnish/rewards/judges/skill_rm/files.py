"""The text files of a skill, from a folder or a zip, read as data and never executed.

    bundle = read_files("skills/code")          # or "code.zip"
    bundle.files["SKILL.md"], bundle.hash, bundle.problems

Nothing is unpacked to disk. Links, absolute paths, paths that climb out, files that are no text and
anything over the size limits are refused by name. Folder and zip of the same files have one hash.
"""

from __future__ import annotations

import hashlib
import os
import stat
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from burnish.errors import UserError

SUFFIXES = (".md", ".yaml", ".yml", ".json", ".py", ".txt")
FILE_BYTES = 256_000
TOTAL_BYTES = 2_000_000
MOST_FILES = 200
_CLUTTER = frozenset({"__pycache__", "__MACOSX", ".git", ".DS_Store"})
"""What tools leave behind; not part of a package."""


@dataclass(frozen=True)
class Bundle:
    """Texts by path, and what was refused."""

    files: Mapping[str, str]
    hash: str
    problems: tuple[str, ...]


def read_files(place: str | Path) -> Bundle:
    """Every text file of a folder or zip; what is not one is a problem, one line each."""
    path = Path(place)
    if path.is_dir():
        return _bundle(_of_folder(path))
    if not path.is_file():
        raise UserError(f"{path}: no such skill; expected a folder or a .zip file.")
    try:
        with zipfile.ZipFile(path) as archive:
            return _bundle(_of_zip(archive))
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise UserError(f"{path}: cannot be read as a zip file: {error}.") from error


def package_hash(files: Mapping[str, bytes]) -> str:
    """SHA-256 over names and contents, in the order of the names."""
    hasher = hashlib.sha256()
    for name in sorted(files):
        for part in (name.encode(), files[name]):
            hasher.update(len(part).to_bytes(8, "big"))
            hasher.update(part)
    return hasher.hexdigest()


@dataclass(frozen=True)
class _Found:
    """A file, or why it is none."""

    name: str
    data: bytes = b""
    problem: str = ""


def _bundle(found: Iterator[_Found]) -> Bundle:
    raw: dict[str, bytes] = {}
    texts: dict[str, str] = {}
    problems: list[str] = []
    total = 0
    for one in found:
        problem = one.problem or _text_problem(one)
        if not problem and one.name.casefold() in {name.casefold() for name in raw}:
            problem = "the same name twice, but for capitals"
        total += len(one.data)
        if total > TOTAL_BYTES or len(raw) >= MOST_FILES:
            problems.append(
                f"more than {TOTAL_BYTES:,} bytes or {MOST_FILES} files; the rest was not read"
            )
            break
        if problem:
            problems.append(f"{one.name}: {problem}")
            continue
        raw[one.name] = one.data
        texts[one.name] = one.data.decode("utf-8")
    return Bundle(texts, package_hash(raw), tuple(problems))


def _text_problem(found: _Found) -> str:
    if PurePosixPath(found.name).suffix.lower() not in SUFFIXES:
        return f"not a text file of a skill; expected {', '.join(SUFFIXES)}"
    if len(found.data) > FILE_BYTES:
        return f"more than {FILE_BYTES:,} bytes"
    try:
        text = found.data.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"not UTF-8 at byte {error.start}"
    return "it holds NUL characters" if "\0" in text else ""


def _of_folder(folder: Path) -> Iterator[_Found]:
    for here, folders, names in os.walk(folder, followlinks=False):
        folders[:] = sorted(set(folders) - _CLUTTER)
        for name in [*folders, *sorted(names)]:
            path = Path(here) / name
            shown = path.relative_to(folder).as_posix()
            if path.is_symlink():
                yield _Found(shown, problem="a link; expected a file of the package itself")
            elif name in _CLUTTER or path.is_dir():
                continue
            elif not path.is_file():
                yield _Found(shown, problem="no plain file")
            else:
                with path.open("rb") as stream:
                    yield _Found(shown, stream.read(FILE_BYTES + 1))


def _of_zip(archive: zipfile.ZipFile) -> Iterator[_Found]:
    members = [m for m in archive.infolist() if not m.is_dir() and not _is_clutter(m.filename)]
    top = _shared_top([member.filename for member in members])
    for member in sorted(members, key=lambda member: member.filename):
        name = member.filename.removeprefix(top)
        problem = _member_problem(member)
        if problem:
            yield _Found(name, problem=problem)
            continue
        # One byte over the limit is enough to refuse it: a bomb is never blown up.
        try:
            with archive.open(member) as stream:
                yield _Found(name, stream.read(FILE_BYTES + 1))
        except (zipfile.BadZipFile, EOFError, OSError) as error:
            yield _Found(name, problem=f"cannot be unpacked: {error}")


def _member_problem(member: zipfile.ZipInfo) -> str:
    # `orig_filename` is what the archive says; zipfile tidies `filename` on some systems.
    for name in (member.orig_filename, member.filename):
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name:
            return "a path that leaves the package"
    if stat.S_ISLNK(member.external_attr >> 16):
        return "a link; expected a file of the package itself"
    return "encrypted" if member.flag_bits & 1 else ""


def _shared_top(names: list[str]) -> str:
    """`folder/` where a zip holds one folder and nothing beside it."""
    tops = {name.split("/", 1)[0] for name in names if "/" in name}
    is_one = len(tops) == 1 and all("/" in name for name in names)
    top = next(iter(tops), "")
    return f"{top}/" if is_one and f"{top}/SKILL.md" in names else ""


def _is_clutter(name: str) -> bool:
    return bool(_CLUTTER & set(PurePosixPath(name).parts))
