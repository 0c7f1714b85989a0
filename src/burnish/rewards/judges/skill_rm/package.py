"""A skill package: how to judge one family of tasks, as a procedure and a bank of resources.

    skill = load_skill("skills/code")           # a folder, a .zip, or the name of a shipped skill
    skill.procedure, [entry.id for entry in skill.resources], skill.hash
    problems_of("my_skill.zip")                 # every problem, one line each; empty where valid

`SKILL.md` has front matter (name, description, metadata) and a body, the procedure.
`resources.yaml` has the lists `resources` (files) and `runtime_resources` (verifiers).
"""

from __future__ import annotations

import hashlib
import re
import stat
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from burnish.boundary import Call, Settings, reader
from burnish.errors import ArgumentError, UserError, did_you_mean
from burnish.rewards.judges.skill_rm.verifiers import Mode, Resource, options_problem, read_entry
from burnish.tools.archives import ArchiveError, unpacked

MANUAL, BANK = "SKILL.md", "resources.yaml"
NEXT_STEP = f"expected {MANUAL} and {BANK}, as in a shipped skill (burnish skill show code)"
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
_LINK = re.compile(r"\]\((?:\./)?([\w./-]+\.\w+)(?:#[^)\s]*)?\)")
"""A link to a file of the package by its plain path."""
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
        found = (entry for entry in self.resources if name in (entry.id, entry.path) and name)
        return next(found, None)


class Checked(NamedTuple):
    package: SkillPackage | None
    problems: tuple[str, ...]


def shipped_skills() -> dict[str, Path]:
    """The skills that come with burnish, by name."""
    found = sorted((Path(__file__).parent / "skills").glob(f"*/{MANUAL}"))
    return {path.parent.name: path.parent for path in found}


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
    files, problems = bundle.files, list(bundle.problems)
    if MANUAL not in files and BANK not in files:
        return Checked(None, (f"no {MANUAL} and no {BANK} here, so this is no skill; {NEXT_STEP}",))
    front, procedure = _manual(files, problems)
    problems += [
        f"{MANUAL}: links to '{link}', which is not in the package.{did_you_mean(link, files)}"
        for link in dict.fromkeys(_LINK.findall(_CODE.sub("", procedure)))
        if not link.startswith("/") and link not in files
    ]
    entries = _bank(files, problems)
    texts = {entry.path: files[entry.path] for entry in entries if entry.path in files}
    problems += [
        f"{name}: not listed in {BANK}, so no judge could open it"
        for name in files
        if name not in (*texts, MANUAL, BANK)
    ]
    if front is None or problems:
        return Checked(None, tuple(problems))
    package = SkillPackage(
        name=front.name,
        description=front.description,
        procedure=procedure,
        resources=tuple(entries),
        texts=texts,
        hash=bundle.hash,
        metadata=front.metadata,
    )
    return Checked(package, ())


class _Front(Settings, frozen=True):
    name: Annotated[
        str,
        Meta(pattern=r"^[a-z][a-z0-9_-]{0,63}$", description="small letters, digits, '_' and '-'"),
    ]
    description: Annotated[
        str, Meta(pattern=r"\S", max_length=1024, description="a text of 1 to 1024 characters")
    ]
    metadata: dict[str, object] = msgspec.field(default_factory=dict)
    license: str = ""


def _manual(files: Mapping[str, str], problems: list[str]) -> tuple[_Front | None, str]:
    if MANUAL not in files:
        problems.append(f"{MANUAL}: missing; {NEXT_STEP}")
        return None, ""
    parts = _FRONT.fullmatch(files[MANUAL])
    if parts is None:
        problems.append(
            f"{MANUAL}: no front matter; expected it between two lines '---' at the top"
        )
        return None, ""
    procedure = parts[2].strip()
    if not procedure:
        problems.append(f"{MANUAL}: no procedure below the front matter")
    return _settings(_Front, MANUAL, parts[1], problems), procedure


S = TypeVar("S", bound=Settings)


def _settings(kind: type[S], name: str, text: str, problems: list[str]) -> S | None:
    """The settings in a YAML document; None where they cannot be read, which is a problem."""
    value, problem = read_yaml(text)
    if isinstance(value, dict):
        value = {key: one for key, one in value.items() if one is not None}
    try:
        if problem:
            raise ArgumentError(f"{name}: {problem}")
        found: S = reader(kind)(name, value, Call())
        return found
    except ArgumentError as error:
        problems.append(" ".join(str(error).split()))
        return None


class _Bank(Settings, frozen=True):
    resources: tuple[object, ...] = ()
    runtime_resources: tuple[object, ...] = ()


def _bank(files: Mapping[str, str], problems: list[str]) -> list[Resource]:
    if BANK not in files:
        problems.append(
            f"{BANK}: missing; {NEXT_STEP}. A skill for the model that answers, not for a judge, needs "
            "none: it is for burnish skill evolve"
        )
        return []
    bank = _settings(_Bank, BANK, files[BANK], problems) or _Bank()
    rows = [(f"resources[{i}]", row) for i, row in enumerate(bank.resources)]
    rows += [(f"runtime_resources[{i}]", row) for i, row in enumerate(bank.runtime_resources)]
    entries: list[Resource] = []
    for place, row in rows:
        is_runtime = place.startswith("runtime")
        entry, problem = read_entry(row, f"{BANK}: {place}", is_runtime=is_runtime)
        if entry is not None:
            problem = _misplaced(entry, files, entries)
            problem = f"{BANK}: {entry.id}: {problem}" if problem else ""
            entries.append(entry)
        problems += [problem] * bool(problem)
    return entries


def _misplaced(entry: Resource, files: Mapping[str, str], before: list[Resource]) -> str:
    """What is wrong with an entry as part of its package."""
    taken = {name for other in before for name in (other.id, other.path) if name}
    twice = [name for name in (entry.id, entry.path) if name in taken]
    if twice:
        return f"'{twice[0]}' is already the id or path of another resource"
    if entry.is_runtime:
        return options_problem(entry)
    if _leaves(entry.path):
        return f"path '{entry.path}' leaves the package"
    if entry.path not in files or entry.path in (MANUAL, BANK):
        hint = did_you_mean(entry.path, files)
        return f"no readable file '{entry.path}' of its own in the package.{hint}"
    return ""


def _leaves(name: str) -> bool:
    path = PurePosixPath(name)
    return path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name


SUFFIXES = (".md", ".yaml", ".yml", ".json", ".py", ".txt")
FILE_BYTES = 256_000
TOTAL_BYTES = 2_000_000
MOST_FILES = 200
_CLUTTER = frozenset({"__pycache__", "__MACOSX", ".git", ".DS_Store"})
"""What tools leave behind; not part of a package."""


class Bundle(NamedTuple):
    """Texts by path, and what was refused."""

    files: Mapping[str, str]
    hash: str
    problems: tuple[str, ...]


def read_files(place: str | Path, *, others: bool = False) -> Bundle:
    """Every text file of a folder or zip; what is not one is a problem, one line each.

    With `others` files of another kind (a script, a picture, a hidden file) are passed over.
    """
    raw: dict[str, bytes] = {}
    problems: list[str] = []
    total = 0
    for found in _files(Path(place)):
        if others and not found.problem and not is_text_name(found.name):
            continue
        problem, data = found.problem, b""
        if not problem:
            try:
                # One byte over the limit is enough to refuse it: a bomb is never blown up.
                data = found.read(FILE_BYTES + 1)
                problem = _no_text(found.name, data)
            except ArchiveError as error:
                problem = f"cannot be unpacked: {error}"
        if found.name.casefold() in {name.casefold() for name in raw}:
            problem = problem or "the same name twice, but for capitals"
        total += len(data)
        if total > TOTAL_BYTES or len(raw) >= MOST_FILES:
            problems.append(
                f"more than {TOTAL_BYTES:,} bytes or {MOST_FILES} files; the rest was not read"
            )
            break
        if problem:
            problems.append(f"{found.name}: {problem}")
        else:
            raw[found.name] = data
    texts = {name: data.decode("utf-8") for name, data in raw.items()}
    return Bundle(texts, package_hash(raw), tuple(problems))


def package_hash(files: Mapping[str, bytes]) -> str:
    """SHA-256 over names and contents, in the order of the names."""
    hasher = hashlib.sha256()
    for name in sorted(files):
        for part in (name.encode(), files[name]):
            hasher.update(len(part).to_bytes(8, "big"))
            hasher.update(part)
    return hasher.hexdigest()


def is_text_name(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in SUFFIXES


def _no_text(name: str, data: bytes) -> str:
    if not is_text_name(name):
        return f"not a text file of a skill; expected {', '.join(SUFFIXES)}"
    if len(data) > FILE_BYTES:
        return f"more than {FILE_BYTES:,} bytes"
    try:
        return "it holds NUL characters" if "\0" in data.decode("utf-8") else ""
    except UnicodeDecodeError as error:
        return f"not UTF-8 at byte {error.start}"


class Member(NamedTuple):
    """A file as it is: its permissions, and its bytes where it is no text of a skill."""

    mode: int
    data: bytes | None


def read_members(place: Path, most: int) -> dict[str, Member]:
    """Every plain file of a folder or zip; UserError above `most` bytes that are no texts.

    `read_files` has checked the place before: links and paths that leave it are refused there.
    """
    members: dict[str, Member] = {}
    for found in _files(place):
        if found.problem:
            continue
        data = None if is_text_name(found.name) else found.read(most + 1)
        most -= len(data or b"")
        if most < 0:
            raise UserError(f"{place}: {found.name} and others are too large to be carried along.")
        members[found.name] = Member(found.mode, data)
    return members


class _Found(NamedTuple):
    """A file, or why it is none."""

    name: str
    problem: str
    mode: int
    read: Callable[[int], bytes]
    """So many bytes from the start."""


def _files(place: Path) -> Iterator[_Found]:
    if not place.is_dir():
        yield from _of_zip(place)
        return
    for path in sorted(place.rglob("*")):
        name = path.relative_to(place).as_posix()
        is_folder = path.is_dir() and not path.is_symlink()
        if is_folder or _CLUTTER & set(path.relative_to(place).parts):
            continue
        problem = "" if path.is_file() else "no plain file"
        if path.is_symlink():
            problem = "a link; expected a file of the package itself"
        yield _Found(name, problem, path.lstat().st_mode & 0o777, partial(_begin, path))


def _begin(path: Path, most: int) -> bytes:
    with path.open("rb") as stream:
        return stream.read(most)


def _of_zip(place: Path) -> Iterator[_Found]:
    try:
        with zipfile.ZipFile(place) as archive:
            members = [
                member
                for member in archive.infolist()
                if not member.is_dir() and not _CLUTTER & set(PurePosixPath(member.filename).parts)
            ]
            names = [member.filename for member in members]
            top = names[0].split("/", 1)[0] + "/" if names else ""
            # `folder/` where the zip holds one folder and nothing beside it.
            is_one = f"{top}{MANUAL}" in names and all(name.startswith(top) for name in names)
            for member in sorted(members, key=lambda member: member.filename):
                name = member.filename.removeprefix(top) if is_one else member.filename
                mode = member.external_attr >> 16
                problem = "encrypted" if member.flag_bits & 1 else ""
                if stat.S_ISLNK(mode):
                    problem = "a link; expected a file of the package itself"
                # `orig_filename` is what the archive says; zipfile tidies `filename` on some systems.
                if _leaves(member.orig_filename) or _leaves(member.filename):
                    problem = "a path that leaves the package"
                read = partial(unpacked, archive, member)
                yield _Found(name, problem, mode & 0o777 or 0o644, read)
    except (OSError, zipfile.BadZipFile, NotImplementedError) as error:
        raise UserError(
            f"{place}: not a skill: expected a folder or a .zip, got a file that cannot be read as a zip "
            f"({str(error).rstrip('.')}). Examples: burnish skill show"
        ) from error


class Loaded(NamedTuple):
    value: Any
    problem: str = ""


def read_yaml(text: str) -> Loaded:
    """The value of one YAML document, or the problem with it: it is plain data, no key stands twice."""
    import yaml

    class Plain(yaml.SafeLoader):  # type: ignore[misc]
        """Refuses what YAML would read on the quiet: aliases, and the last of equal keys."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if getattr(self.peek_event(), "anchor", None):
                mark = self.peek_event().start_mark
                raise yaml.MarkedYAMLError(None, None, "anchors and aliases are not allowed", mark)
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            found = super().construct_mapping(node, deep)
            if len(found) < len(node.value):
                raise yaml.MarkedYAMLError(None, None, "a key stands twice", node.start_mark)
            return found

    try:
        return Loaded(yaml.load(text, Loader=Plain))
    except (yaml.YAMLError, ValueError, ArithmeticError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}: " if mark else ""
        said = getattr(error, "problem", None) or str(error)
        return Loaded(None, f"not YAML: {place}{' '.join(str(said).split())[:200]}")
