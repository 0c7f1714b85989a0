"""A skill as a table of files: read, checked against the public convention, written whole.

`SKILL.md` has front matter (name, description) and a body; `references/*.md` lie beside it and are
linked from it. A package with a `resources.yaml` is also a judging skill (Skill-RM): new references
are listed there, so that judges can open them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from burnish.agents.trace2skill.edits import front_lines, headings, outline, section_bounds
from burnish.arguments import as_path
from burnish.boundary import public
from burnish.errors import StoreError, UserError
from burnish.rewards.judges.skill_rm.package import (
    BANK,
    MANUAL,
    Member,
    check_skill,
    package_hash,
    read_files,
    read_members,
    read_yaml,
    skill_place as place_of,
)

BODY_LINES = 500
REFERENCE_LINES = 300
KEYS = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")
REFERENCE = re.compile(r"references/[\w.\-]+\.md")
"""A mention of a reference file, as a link or in words."""
MOST_CARRIED = 64_000_000
"""Bytes of a skill's files that are no texts."""
WRITTEN = ".burnish-skills.json"
"""Beside the skills that were written here: their names and hashes, so that no other is replaced."""
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_JUDGE_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")


def read_skill(place: str | Path) -> dict[str, str]:
    """Every text file of a skill's folder or zip, or of a shipped skill, by its path.

    Scripts of a shell, pictures and hidden files are left to `carried_files`.
    """
    bundle = read_files(place_of(as_path("place", place, "a skill's folder")), others=True)
    if bundle.problems:
        raise UserError(f"skill {place}: {bundle.problems[0]}.")
    if MANUAL not in bundle.files:
        raise UserError(f"skill {place}: no {MANUAL} here; expected a skill's folder or zip.")
    return dict(bundle.files)


def carried_files(place: str | Path) -> dict[str, Member]:
    """What `write_skill` carries along untouched: other files of a skill, and permissions of all."""
    return read_members(place_of(as_path("place", place, "a skill's folder")), MOST_CARRIED)


def front_matter(text: str) -> tuple[dict[str, Any], str]:
    """The table at the top of a `SKILL.md`, and in one line what is wrong with it."""
    lines = text.split("\n")
    count = front_lines(lines)
    if not count:
        return {}, "no front matter; expected it between two lines '---' at the top"
    value, problem = read_yaml("\n".join(lines[1 : count - 1]))
    if problem or not isinstance(value, dict):
        return {}, f"front matter: {problem or 'expected a table'}"
    return value, ""


def front_text(text: str) -> str:
    """The lines of the front matter as they stand."""
    lines = text.split("\n")
    return "\n".join(lines[: front_lines(lines)])


def body_lines(text: str) -> int:
    """Lines below the front matter, blank ones at the end not counted."""
    lines = text.rstrip("\n").split("\n")
    return len(lines) - front_lines(lines)


def mentioned(text: str) -> list[str]:
    """Reference files that a text names, in order, each once."""
    return list(dict.fromkeys(REFERENCE.findall(text)))


def skill_name(files: Mapping[str, str]) -> str:
    """The name in the front matter; `skill` where it has none."""
    name = front_matter(files[MANUAL])[0].get("name")
    return name if isinstance(name, str) and _JUDGE_NAME.fullmatch(name) else "skill"


@public
def skill_problems(files: Mapping[str, str], *, name: str = "") -> list[str]:
    """What is wrong with a skill by the public convention, one line each; `name`: its folder's.

    >>> skill_problems({"SKILL.md": "---\\nname: a\\ndescription: b\\n---\\n# A\\n"})
    []
    """
    if MANUAL not in files:
        return [f"{MANUAL}: missing"]
    front, problem = front_matter(files[MANUAL])
    problems = [f"{MANUAL}: {problem}"] if problem else _front_problems(front, name, files)
    if body_lines(files[MANUAL]) > BODY_LINES:
        problems.append(f"{MANUAL}: {body_lines(files[MANUAL])} lines; expected up to {BODY_LINES}")
    if not files[MANUAL].split("\n", front_lines(files[MANUAL].split("\n")))[-1].strip():
        problems.append(f"{MANUAL}: nothing below the front matter")
    linked = mentioned(files[MANUAL])
    for path, text in files.items():
        is_reference = path.startswith("references/")
        if path != MANUAL and is_reference and path not in linked:
            problems.append(f"{path}: no link to it in {MANUAL}")
        if is_reference and _is_long(text):
            problems.append(f"{path}: more than {REFERENCE_LINES} lines")
        if path.endswith(".md") and outline(text.split("\n")).is_open:
            problems.append(f"{path}: a block of code is never closed")
        problems += [
            f"{path}: links to {one}, which is not there"
            for one in (mentioned(text) if path.endswith(".md") else ())
            if one not in files
        ]
    if BANK in files:
        with tempfile.TemporaryDirectory(prefix="burnish-skill-") as folder:
            _write(files, Path(folder))
            problems += check_skill(folder).problems
    return problems


def _front_problems(front: Mapping[str, Any], folder: str, files: Mapping[str, str]) -> list[str]:
    name, description = front.get("name"), front.get("description")
    pattern = _JUDGE_NAME if BANK in files else _NAME
    found = [f"{MANUAL}: unknown field {key!r}" for key in front if key not in KEYS]
    if not isinstance(name, str) or len(name) > 64 or not pattern.fullmatch(name):
        found.append(f"{MANUAL}: name is {name!r}; expected small letters, digits and hyphens")
    elif folder and name != folder:
        found.append(f"{MANUAL}: name is {name!r} but the folder is '{folder}'")
    if not isinstance(description, str) or not 1 <= len(description.strip()) <= 1024:
        found.append(f"{MANUAL}: description must be a text of 1 to 1024 characters")
    if len(str(front.get("compatibility") or "")) > 500:
        found.append(f"{MANUAL}: compatibility has more than 500 characters")
    if not isinstance(front.get("metadata") or {}, dict):
        found.append(f"{MANUAL}: metadata must be a table")
    return found


def listed(files: Mapping[str, str], *, judge: bool = False) -> dict[str, str]:
    """The files with every reference listed in `resources.yaml`, where the skill has one.

    With `judge` a skill without one gets it, so that Skill-RM can load it.
    """
    found = dict(files)
    if BANK not in found:
        if not judge:
            return found
        found[BANK] = "resources: []\nruntime_resources: []\n"
    import yaml

    value, problem = read_yaml(found[BANK])
    if problem or not isinstance(value, dict):
        return found
    rows = [row for row in value.get("resources") or [] if isinstance(row, dict)]
    kept = [
        row
        for row in rows
        if row.get("path") in found or not str(row.get("path", "")).startswith("references/")
    ]
    known = {row.get("path") for row in rows}
    new = sorted(p for p in found if p.startswith("references/") and p not in known)
    for path in new:
        stem = PurePosixPath(path).stem
        name = re.sub(r"[^a-z0-9_]", "_", stem.lower()) or "notes"
        entry = {"id": name, "type": "checklist", "implementation_kind": "text"}
        entry |= {"description": f"notes on {stem.replace('-', ' ')}", "path": path}
        entry |= {"cost": "low", "hard_or_soft": "soft", "decision_impact": "evidence"}
        kept.append(entry | {"leakage_level": "sample_visible", "allowed_setting": "skill_fair"})
    if new or len(kept) < len(rows):
        value["resources"] = kept
        found[BANK] = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    return found


def write_skill(
    files: Mapping[str, str], folder: Path, carried: Mapping[str, Member] | None = None
) -> None:
    """Write a skill's folder whole: it is made beside and then put in place.

    A folder that is there is replaced only where an earlier call wrote it and nobody changed it.
    `carried`: of `carried_files`.
    """
    refuse_foreign(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    old = staged.with_name(f"{staged.name}-old")
    try:
        _write(files, staged)
        _refuse_paths(carried or {})
        for name, member in (carried or {}).items():
            target = staged / name
            if member.data is not None:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(member.data)
            if member.data is not None or name in files:
                target.chmod(member.mode)
        staged.chmod(0o755)
        written = _written(folder.parent) | {folder.name: _hash(staged)}
        if folder.exists():
            os.replace(folder, old)
        os.replace(staged, folder)
        (folder.parent / WRITTEN).write_text(json.dumps(written, indent=1) + "\n", "utf-8")
    except OSError as error:
        raise StoreError(f"{folder}: cannot be written ({error})") from error
    finally:
        for left in (staged, old):
            shutil.rmtree(left, ignore_errors=True)


def refuse_foreign(folder: Path, source: str | Path = "") -> None:
    """UserError where writing a skill to `folder` would replace somebody's files, or the source's."""
    target = folder.resolve()
    if source:
        place = Path(place_of(source)).resolve()
        if place == target or place in target.parents or target in place.parents:
            raise UserError(f"{folder}: the skill that is read lies there; give another --out.")
    if not os.path.lexists(folder):
        return
    is_ours = not folder.is_symlink() and folder.is_dir()
    if not is_ours or _written(folder.parent).get(folder.name) != _hash(folder):
        other = "it exists, and was not written by skill distill or was changed since"
        raise UserError(f"{folder}: {other}; give another --out.")


def _written(parent: Path) -> dict[str, str]:
    try:
        found = json.loads((parent / WRITTEN).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _hash(folder: Path) -> str:
    paths = [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
    return package_hash({
        path.relative_to(folder).as_posix(): path.read_bytes()
        if path.is_file() and not path.is_symlink()
        else b"no plain file"
        for path in paths
    })  # fmt: skip


def _write(files: Mapping[str, str], folder: Path) -> None:
    _refuse_paths(files)
    for name, text in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode("utf-8"))


def _refuse_paths(names: Iterable[str]) -> None:
    for name in names:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or not name:
            raise UserError(f"skill file '{name}': the path leaves the skill.")


def skill_prompt(files: Mapping[str, str], *, references: bool = False) -> str:
    """The skill as a system message: its body, and with `references` those files too."""
    text = files[MANUAL]
    lines = text.split("\n")
    parts = ["\n".join(lines[front_lines(lines) :]).strip()]
    if references:
        names = sorted(path for path in files if path.startswith("references/"))
        parts += [f"=== {path} ===\n{files[path].strip()}" for path in names]
    return "\n\n".join(part for part in parts if part)


ROUNDS = 200


def split_long(files: Mapping[str, str]) -> dict[str, str]:
    """The same text in files of the allowed sizes; long sections become references with a link."""
    found = dict(files)
    for _ in range(ROUNDS):
        long = [p for p, text in found.items() if p.startswith("references/") and _is_long(text)]
        if body_lines(found[MANUAL]) > BODY_LINES:
            changed = _move_section(found)
        else:
            changed = bool(long) and _split_reference(found, long[0])
        if not changed:
            break
    return found


def _is_long(reference: str) -> bool:
    return len(reference.rstrip("\n").split("\n")) > REFERENCE_LINES


def _move_section(files: dict[str, str]) -> bool:
    lines = files[MANUAL].rstrip("\n").split("\n")
    starts = headings(lines)
    sections = [
        (place, next((p for p, its in starts.items() if p > place and its <= level), len(lines)))
        for place, level in starts.items()
        if level > 1
    ]
    if not sections:
        middle = front_lines(lines) + BODY_LINES // 2
        lines[middle:middle] = ["", "## More"]
        sections = [(middle + 1, len(lines))]
    start, end = max(sections, key=lambda span: (span[1] - span[0], -span[0]))
    if end - start <= 4:
        return False
    title = lines[start].lstrip("# ").strip() or "More"
    path = _free_name(files, _slug(title))
    body = lines[start + 1 : end]
    links = [f"- [{_title(one)}]({one})" for one in mentioned("\n".join(body))]
    files[path] = f"# {title}\n" + "\n".join(body).rstrip("\n") + "\n"
    link = f"Read [{title}]({path}) for this."
    parts = [*lines[: start + 1], "", link, *links, "", *lines[end:]]
    files[MANUAL] = "\n".join(parts).rstrip("\n") + "\n"
    return True


def _split_reference(files: dict[str, str], path: str) -> bool:
    """Cut a reference in two at a heading or a line outside of code, and link the second part."""
    lines = files[path].rstrip("\n").split("\n")
    starts = [p for p in headings(lines) if REFERENCE_LINES // 4 < p <= REFERENCE_LINES]
    for place in starts[-1:] or range(REFERENCE_LINES, 1, -1):
        # Outside of code a heading put here would be found as one.
        cut = section_bounds.plain([*lines[:place], "# cut here"], "# cut here")
        if starts or cut is not None:
            break
    else:
        return False
    second = _free_name(files, _slug(path.removeprefix("references/").removesuffix(".md")))
    files[path] = "\n".join(lines[:place]).rstrip("\n") + "\n"
    files[second] = "\n".join(lines[place:]).strip("\n") + "\n"
    manual = files[MANUAL].split("\n")
    at = next((i for i, line in enumerate(manual) if path in mentioned(line)), len(manual) - 1)
    manual.insert(at + 1, f"- [{_title(second)}]({second}), continued from {_title(path)}")
    files[MANUAL] = "\n".join(manual)
    return True


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:40] or "more"


def _free_name(files: Mapping[str, str], slug: str) -> str:
    names = [f"references/{slug}.md", *(f"references/{slug}-{i}.md" for i in range(2, 10_000))]
    return next(name for name in names if name not in files)


def _title(path: str) -> str:
    return path.removeprefix("references/").removesuffix(".md").replace("-", " ")
