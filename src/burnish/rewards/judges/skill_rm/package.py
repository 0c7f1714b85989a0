"""A skill package: how to judge one family of tasks, as a procedure and a bank of resources.

    skill = load_skill("skills/code")           # a folder, a .zip, or the name of a shipped skill
    skill.procedure, [entry.id for entry in skill.resources], skill.hash
    problems_of("my_skill.zip")                 # every problem, one line each; empty where valid

`SKILL.md` has front matter (name, description, metadata) and a body, the procedure.
`resources.yaml` has the lists `resources` (files) and `runtime_resources` (verifiers).
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from burnish.errors import UserError, did_you_mean
from burnish.rewards.judges.skill_rm.verifiers import (
    VERIFIERS,
    Mode,
    Resource,
    options_problem,
    read_entry,
)
from burnish.tools.archives import ArchiveError, unpacked

SKILLS = Path(__file__).parent / "skills"
MANUAL, BANK = "SKILL.md", "resources.yaml"
NEXT_STEP = f"expected {MANUAL} and {BANK}, as in a shipped skill (burnish skill show code)"
_FRONT_KEYS = ("name", "description", "metadata", "license")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
_LINK = re.compile(r"\]\((?:\./)?([\w./-]+\.\w+)(?:#[^)\s]*)?\)")
"""A link to a file of the package by its plain path."""
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_FRONT = re.compile(r"---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)(.*)", re.DOTALL)


@dataclass(frozen=True)
class SkillPackage:
    name: str
    description: str
    procedure: str
    resources: tuple[Resource, ...]
    texts: Mapping[str, str]
    """Contents of the file resources, by path."""
    hash: str
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def seen_in(self, mode: Mode) -> SkillPackage:
        """The package as a mode may see it: nothing else is in it, neither names nor contents."""
        entries = tuple(entry for entry in self.resources if entry.allowed_in(mode))
        texts = {entry.path: self.texts[entry.path] for entry in entries if entry.path}
        return replace(self, resources=entries, texts=texts)

    def find(self, name: str) -> Resource | None:
        """The resource with this id or path."""
        found = (entry for entry in self.resources if name in (entry.id, entry.path) and name)
        return next(found, None)


class Checked(NamedTuple):
    package: SkillPackage | None
    problems: tuple[str, ...]


def shipped_skills() -> dict[str, Path]:
    """The skills that come with burnish, by name."""
    return {path.parent.name: path.parent for path in sorted(SKILLS.glob(f"*/{MANUAL}"))}


def skill_place(word: str | Path) -> Path:
    """The folder or zip that a path or the name of a shipped skill means."""
    known = shipped_skills()
    if str(word) in known:
        return known[str(word)]
    path = Path(word)
    if path.exists():
        return path
    raise UserError(
        f"no skill '{word}'; expected a folder, a .zip or one of {', '.join(known)}."
        f"{did_you_mean(str(word), known)}"
    )


def load_skill(word: str | Path) -> SkillPackage:
    """A valid package; the first problem of one that is not is raised."""
    place = skill_place(word)
    package, problems = check_skill(place)
    if package is None:
        more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
        raise UserError(
            f"skill {place}: {problems[0]}{more}. See all: burnish skill validate {place}"
        )
    return package


def problems_of(place: str | Path) -> tuple[str, ...]:
    """Everything that keeps a folder or zip from being a skill, one line each."""
    return check_skill(place).problems


def check_skill(place: str | Path) -> Checked:
    """Read a folder or zip and list all problems; a package only where there are none."""
    bundle = read_files(place)
    if MANUAL not in bundle.files and BANK not in bundle.files:
        return Checked(None, (f"no {MANUAL} and no {BANK} here, so this is no skill; {NEXT_STEP}",))
    problems = list(bundle.problems)
    front, procedure = _manual(bundle.files, problems)
    problems += [
        f"{MANUAL}: links to '{link}', which is not in the package.{did_you_mean(link, bundle.files)}"
        for link in dict.fromkeys(_LINK.findall(_CODE.sub("", procedure)))
        if not link.startswith("/") and link not in bundle.files
    ]
    entries = _bank(bundle.files, problems)
    used = {entry.path for entry in entries if entry.path} | {MANUAL, BANK}
    problems += [
        f"{name}: not listed in {BANK}, so no judge could open it"
        for name in bundle.files
        if name not in used
    ]
    if problems:
        return Checked(None, tuple(problems))
    texts = {entry.path: bundle.files[entry.path] for entry in entries if entry.path}
    package = SkillPackage(
        name=front["name"],
        description=front["description"],
        procedure=procedure,
        resources=tuple(entries),
        texts=texts,
        hash=bundle.hash,
        metadata=front.get("metadata") or {},
    )
    return Checked(package, ())


def _manual(files: Mapping[str, str], problems: list[str]) -> tuple[dict[str, Any], str]:
    text = files.get(MANUAL)
    if text is None:
        problems.append(f"{MANUAL}: missing; {NEXT_STEP}")
        return {}, ""
    parts = _FRONT.fullmatch(text)
    if parts is None:
        problems.append(
            f"{MANUAL}: no front matter; expected it between two lines '---' at the top"
        )
        return {}, ""
    front, problem = read_yaml(parts[1])
    if problem or not isinstance(front, dict):
        problems.append(f"{MANUAL}: front matter: {problem or 'expected a table'}")
        return {}, ""
    problems += [
        f"{MANUAL}: unknown field {str(key)!r}.{did_you_mean(str(key), _FRONT_KEYS)}"
        for key in front
        if key not in _FRONT_KEYS
    ]
    name, description = front.get("name"), front.get("description")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        problems.append(f"{MANUAL}: name is {name!r}; expected small letters, digits, '_' and '-'")
    if not isinstance(description, str) or not 1 <= len(description.strip()) <= 1024:
        problems.append(f"{MANUAL}: description must be a text of 1 to 1024 characters")
    if not isinstance(front.get("metadata") or {}, dict):
        problems.append(f"{MANUAL}: metadata must be a table")
    procedure = parts[2].strip()
    if not procedure:
        problems.append(f"{MANUAL}: no procedure below the front matter")
    return front, procedure


def _bank(files: Mapping[str, str], problems: list[str]) -> list[Resource]:
    text = files.get(BANK)
    if text is None:
        problems.append(
            f"{BANK}: missing; {NEXT_STEP}. A skill for the model that answers, not for a judge, needs "
            "none: it is for burnish skill evolve"
        )
        return []
    table, problem = read_yaml(text)
    if problem or not isinstance(table, dict):
        problems.append(f"{BANK}: {problem or 'expected the lists resources, runtime_resources'}")
        return []
    lists = ("resources", "runtime_resources")
    problems += [
        f"{BANK}: unknown list {str(key)!r}.{did_you_mean(str(key), lists)}"
        for key in table
        if key not in lists
    ]
    entries: list[Resource] = []
    for name in lists:
        rows = table.get(name) or []
        if not isinstance(rows, list):
            problems.append(f"{BANK}: {name} must be a list")
            continue
        for place, row in enumerate(rows):
            is_runtime = name == "runtime_resources"
            entry, wrong = read_entry(
                row, f"{BANK}: {name}[{place}]", is_runtime=is_runtime, kinds=VERIFIERS
            )
            problems += wrong
            if entry is not None:
                problems += _entry_problems(entry, files, entries)
                entries.append(entry)
    return entries


def _entry_problems(entry: Resource, files: Mapping[str, str], before: list[Resource]) -> list[str]:
    """What is wrong with an entry as part of its package."""
    where, found = f"{BANK}: {entry.id}", []
    names = {name for other in before for name in (other.id, other.path) if name}
    found += [
        f"{where}: '{name}' is already the id or path of another resource"
        for name in dict.fromkeys((entry.id, entry.path))
        if name in names
    ]
    if entry.is_runtime:
        problem = options_problem(entry)
        return found + ([f"{where}: {problem}"] if problem else [])
    path = PurePosixPath(entry.path)
    if path.is_absolute() or ".." in path.parts or "\\" in entry.path or ":" in entry.path:
        found.append(f"{where}: path '{entry.path}' leaves the package")
    elif entry.path in (MANUAL, BANK):
        found.append(f"{where}: {entry.path} itself is no resource")
    elif entry.path not in files:
        hint = did_you_mean(entry.path, files)
        found.append(f"{where}: no readable file '{entry.path}' in the package.{hint}")
    return found


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


def read_files(place: str | Path, *, others: bool = False) -> Bundle:
    """Every text file of a folder or zip; what is not one is a problem, one line each.

    With `others` files of another kind (a script, a picture, a hidden file) are passed over.
    """
    path = Path(place)
    if path.is_dir():
        return _bundle(_texts(_of_folder(path), others=others))
    if not path.is_file():
        raise UserError(f"{path}: no such skill; expected a folder or a .zip file.")
    try:
        with zipfile.ZipFile(path) as archive:
            return _bundle(_texts(_of_zip(archive), others=others))
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise UserError(
            f"{path}: not a skill: expected a folder or a .zip, got a file that cannot be read as a zip "
            f"({str(error).rstrip('.')}). Examples: burnish skill show"
        ) from error


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


def is_text_name(name: str) -> bool:
    """Whether a file of this name is a text of a skill."""
    return PurePosixPath(name).suffix.lower() in SUFFIXES


def _texts(found: Iterator[_Found], *, others: bool) -> Iterator[_Found]:
    return (one for one in found if not others or one.problem or is_text_name(one.name))


def _text_problem(found: _Found) -> str:
    if not is_text_name(found.name):
        return f"not a text file of a skill; expected {', '.join(SUFFIXES)}"
    if len(found.data) > FILE_BYTES:
        return f"more than {FILE_BYTES:,} bytes"
    try:
        text = found.data.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"not UTF-8 at byte {error.start}"
    return "it holds NUL characters" if "\0" in text else ""


class Member(NamedTuple):
    """A file as it is: its permissions, and its bytes where it is no text of a skill."""

    mode: int
    data: bytes | None


def read_members(place: Path, most: int) -> dict[str, Member]:
    """Every plain file of a folder or zip; UserError above `most` bytes that are no texts.

    `read_files` has checked the place before: links and paths that leave it are refused there.
    """
    found: dict[str, Member] = {}
    for name, mode, read in _members(place):
        data = None if is_text_name(name) else read(most + 1)
        most -= len(data or b"")
        if most < 0:
            raise UserError(f"{place}: {name} and others are too large to be carried along.")
        found[name] = Member(mode, data)
    return found


def _members(place: Path) -> Iterator[tuple[str, int, Callable[[int], bytes]]]:
    """Name, permissions and a reader of so many bytes."""
    if place.is_dir():
        for path in sorted(place.rglob("*")):
            name = path.relative_to(place).as_posix()
            if path.is_file() and not path.is_symlink() and not _is_clutter(name):
                with path.open("rb") as stream:
                    yield name, stat.S_IMODE(path.stat().st_mode) & 0o777, stream.read
        return
    with zipfile.ZipFile(place) as archive:
        members = [m for m in archive.infolist() if not m.is_dir() and not _is_clutter(m.filename)]
        top = _shared_top([member.filename for member in members])
        for member in members:
            with archive.open(member) as packed:
                mode = (member.external_attr >> 16) & 0o777 or 0o644
                yield member.filename.removeprefix(top), mode, packed.read


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
            yield _Found(name, unpacked(archive, member, FILE_BYTES + 1))
        except ArchiveError as error:
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


DEEPEST = 20
"""Levels of nesting; an index needs three."""


class Loaded(NamedTuple):
    value: Any
    problem: str = ""


def read_yaml(text: str) -> Loaded:
    """The value of one YAML document, or the problem with it."""
    import yaml

    depth = 0
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            line = event.start_mark.line + 1
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                return Loaded(None, f"line {line}: anchors and aliases are not allowed")
            if getattr(event, "tag", None) is not None:
                return Loaded(None, f"line {line}: explicit tags are not allowed")
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > DEEPEST:
                return Loaded(None, f"line {line}: nested deeper than {DEEPEST} levels")
        twice = _key_twice(yaml.compose(text, Loader=yaml.SafeLoader))
        if twice:
            return Loaded(None, twice)
        return Loaded(yaml.safe_load(text))
    except (yaml.YAMLError, ValueError, ArithmeticError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}: " if mark else ""
        said = getattr(error, "problem", None) or str(error)
        return Loaded(None, f"not YAML: {place}{' '.join(str(said).split())[:200]}")


def _key_twice(node: Any) -> str:
    """The first key that stands twice in one table; YAML would silently keep the last."""
    import yaml

    if isinstance(node, yaml.SequenceNode):
        found = (_key_twice(item) for item in node.value)
        return next((problem for problem in found if problem), "")
    if not isinstance(node, yaml.MappingNode):
        return ""
    seen: set[str] = set()
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode):
            if key.value in seen:
                return f"line {key.start_mark.line + 1}: '{key.value}' stands twice"
            seen.add(key.value)
        problem = _key_twice(value)
        if problem:
            return problem
    return ""
