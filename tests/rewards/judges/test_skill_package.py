"""Skill packages: what is read, what is refused, and that folder and zip are one thing."""

from __future__ import annotations

import os
import re
import stat
import zipfile

import pytest
import yaml
from hypothesis import given, strategies as st
from skill_cases import MANUAL, a_skill, entry, verifier, write_skill, zipped

from burnish.errors import UserError
from burnish.rewards.judges.skill_rm import load_skill, problems_of, shipped_skills
from burnish.rewards.judges.skill_rm.package import FILE_BYTES, package_hash, read_yaml
from burnish.rewards.judges.skill_rm.verifiers import Resource, read_entry


def only(problems: tuple[str, ...]) -> str:
    assert len(problems) == 1, problems
    return problems[0]


def test_a_folder_and_its_zips_have_one_hash(tmp_path):
    folder = write_skill(tmp_path / "demo", resources=[entry("rules"), entry("more")])
    bare = load_skill(zipped(folder, tmp_path / "bare.zip"))
    with_top = load_skill(zipped(folder, tmp_path / "top.zip", "demo/"))
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").write_bytes(b"\0")
    here = load_skill(folder)
    assert here.hash == bare.hash == with_top.hash
    assert len(here.hash) == 64
    (folder / "rules.md").write_text("changed")
    assert load_skill(folder).hash != here.hash


@given(
    st.dictionaries(st.text(max_size=8), st.binary(max_size=8), max_size=5),
    st.dictionaries(st.text(max_size=8), st.binary(max_size=8), max_size=5),
)
def test_the_hash_tells_files_apart(one, two):
    try:
        same = package_hash(one) == package_hash(two)
    except UnicodeEncodeError:
        return
    assert same == (one == two)
    assert package_hash(dict(reversed(one.items()))) == package_hash(one)


def test_what_a_package_holds(tmp_path):
    skill = a_skill(tmp_path, resources=[entry("rules")], runtime=[verifier("match")])
    assert (skill.name, skill.procedure) == ("demo", "Look closely.")
    assert [one.id for one in skill.resources] == ["rules", "match"]
    assert skill.texts == {"rules.md": "text of rules\n"}
    assert skill.find("rules.md") is skill.find("rules")
    assert skill.find("") is None


@pytest.mark.parametrize("name", sorted(shipped_skills()))
def test_every_shipped_skill_is_valid(name):
    folder = shipped_skills()[name]
    assert problems_of(folder) == ()
    skill = load_skill(name)
    assert skill.name == name
    assert 2 <= len(skill.resources) <= 5
    for word in ("Diagnose", "Ignore", "Answer"):
        assert word in skill.procedure


def test_the_five_skills_are_there():
    expected = {"instruction_following", "mathematics", "code", "open_chat", "grounded_answers"}
    assert set(shipped_skills()) == expected


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"type": "rubrik"}, "type: got 'rubrik', expected .* Did you mean 'rubric'"),
        ({"leakage_level": "oracle_only"}, "skill_fair, but oracle_only"),
        ({"visibility": "oracle"}, "visibility is oracle for sample_visible; expected visible"),
        ({"benchmark": ["x"]}, "got 'benchmark', expected .* Did you mean 'benchmarks'"),
        ({"id": "Rules!"}, "id: got 'Rules!', expected small letters"),
        ({"path": None}, "'path' is missing"),
        ({"applies_to": [1]}, r"applies_to\[0\]: got 1, expected a text"),
        ({"implementation_kind": "texts"}, "Did you mean 'text'"),
        ({"options": {"a": 1}}, "options belong to runtime resources"),
        ({"inputs_required": ["reference"]}, "reads the field 'reference' and is declared sample"),
        ({"description": "x" * 3000}, "description: got "),
    ],
)
def test_a_wrong_field_is_one_line(change, line):
    read = read_entry(entry("rules") | change, "resources[0]", is_runtime=False)
    assert read.entry is None
    assert re.search(line, read.problem)
    assert "\n" not in read.problem


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"implementation_kind": "reference_macth"}, "Did you mean 'reference_match'"),
        ({"allowed_setting": "skill_fair", "leakage_level": "benchmark_visible"}, "operational"),
        ({"path": "x.md"}, "a runtime resource has no path"),
    ],
)
def test_a_wrong_runtime_entry_is_one_line(change, line):
    assert line in read_entry(verifier("m") | change, "here", is_runtime=True).problem


@given(
    st.dictionaries(
        st.sampled_from(Resource.__struct_fields__),
        st.none() | st.text() | st.integers() | st.lists(st.text()),
    )
)
def test_reading_an_entry_never_raises(table):
    for is_runtime in (False, True):
        read = read_entry(table, "here", is_runtime=is_runtime)
        assert (read.entry is None) == bool(read.problem)
        assert "\n" not in read.problem


def test_every_problem_is_listed(tmp_path):
    folder = write_skill(
        tmp_path,
        files={"stray.md": "x", "picture.png": "x"},
        resources=[entry("a", type="rubrik"), entry("b", path="gone.md"), entry("b")],
        runtime=[
            verifier("c", options={"feild": "x"}),
            verifier("d", options={"flag": "wrong_lang"}),
        ],
        manual="---\nname: Demo\nauthor: me\n---\n",
    )
    (folder / "gone.md").unlink()
    problems = problems_of(folder)
    wanted = [
        "picture.png: not a text file", "SKILL.md: got 'author', expected name, description",
        "SKILL.md: no procedure", "type: got 'rubrik'", "no readable file 'gone.md'",
        "'b' is already the id or path", "options: got 'feild', expected", "flag: got 'wrong_lang'",
        "stray.md: not listed",
    ]  # fmt: skip
    for part in wanted:
        assert any(part in line for line in problems), (part, problems)
    with pytest.raises(UserError, match=r"more\)\. See all: burnish skill validate"):
        load_skill(folder)


def test_a_folder_without_a_skill_is_told_so_in_one_line(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "data.bin").write_bytes(b"\xff")
    assert "this is no skill" in only(problems_of(tmp_path))


def test_a_dead_link_of_the_procedure_is_a_problem(tmp_path):
    text = (
        "[this](./rubric.md), [that](rubrik.md#top), [there](https://example.org/rubrik.md), "
        "[up](/a.md), [all](folder/), [asked](rubric.md?raw=1) and `f[0](x.y)`"
    )
    folder = write_skill(
        tmp_path, resources=[entry("a", path="rubric.md")], manual=MANUAL.rstrip() + f"\n{text}\n"
    )
    problem = only(problems_of(folder))
    assert problem.startswith("SKILL.md: links to 'rubrik.md', which is not in the package.")
    assert "Did you mean 'rubric.md'" in problem


@pytest.mark.parametrize("path", ["../out.md", "/etc/hosts", "a/../../out.md", "C:x.md", "a\\b.md"])
def test_an_entry_cannot_point_outside(tmp_path, path):
    folder = write_skill(tmp_path / "in", manual=MANUAL)
    (tmp_path / "out.md").write_text("secret")
    bank = {"resources": [entry("x", path=path)]}
    (folder / "resources.yaml").write_text(yaml.safe_dump(bank))
    assert "leaves the package" in only(problems_of(folder))


def test_the_index_itself_is_no_resource(tmp_path):
    folder = write_skill(tmp_path, resources=[])
    (folder / "resources.yaml").write_text(
        yaml.safe_dump({"resources": [entry("x", path="resources.yaml")]})
    )
    assert "no readable file 'resources.yaml' of its own" in only(problems_of(folder))


def test_links_in_a_folder_are_refused(tmp_path):
    folder = write_skill(tmp_path / "in", resources=[entry("rules")])
    (tmp_path / "secret.md").write_text("secret")
    (folder / "rules.md").unlink()
    os.symlink(tmp_path / "secret.md", folder / "rules.md")
    os.symlink(tmp_path, folder / "up")
    problems = problems_of(folder)
    assert any(line.startswith("rules.md: a link") for line in problems)
    assert any(line.startswith("up: a link") for line in problems)


@pytest.mark.parametrize("name", ["../evil.md", "/evil.md", "a/../../evil.md", "C:\\evil.md"])
def test_a_zip_cannot_climb_out(tmp_path, name):
    folder = write_skill(tmp_path / "in", resources=[entry("rules")])
    target = zipped(folder, tmp_path / "x.zip")
    with zipfile.ZipFile(target, "a") as archive:
        archive.writestr(name, "evil")
    assert any("leaves the package" in line for line in problems_of(target))
    assert not (tmp_path / "evil.md").exists()


def test_a_link_in_a_zip_is_refused(tmp_path):
    target = zipped(write_skill(tmp_path / "in", resources=[entry("rules")]), tmp_path / "x.zip")
    with zipfile.ZipFile(target, "a") as archive:
        link = zipfile.ZipInfo("link.md")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    assert any("link.md: a link" in line for line in problems_of(target))


def test_a_zip_bomb_is_not_blown_up(tmp_path):
    target = zipped(write_skill(tmp_path / "in", resources=[entry("rules")]), tmp_path / "x.zip")
    with zipfile.ZipFile(target, "a", zipfile.ZIP_DEFLATED) as archive:
        for number in range(20):
            archive.writestr(f"bomb{number}.md", b"0" * 4_000_000)
    problems = problems_of(target)
    assert any(f"more than {FILE_BYTES:,} bytes" in line for line in problems)
    assert any("the rest was not read" in line for line in problems)


def test_a_file_that_is_no_zip_and_a_name_that_is_nothing(tmp_path):
    (tmp_path / "x.zip").write_bytes(b"PK not really")
    with pytest.raises(UserError, match="cannot be read as a zip"):
        load_skill(tmp_path / "x.zip")
    with pytest.raises(UserError, match=r"no skill 'cod'.*Did you mean 'code'"):
        load_skill("cod")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: &x [1]\nb: *x\n", "line 1: anchors and aliases"),
        ("a: 1\na: 2\n", "line 1: a key stands twice"), ("a: [1", "not YAML"),
        ("!!python/object/apply:os.system ['true']", "not YAML"), ("a: 1\n---\nb: 2\n", "not YAML"),
    ],
)  # fmt: skip
def test_yaml_is_plain_data(text, problem):
    assert problem in read_yaml(text).problem


def test_bytes_that_are_no_text(tmp_path):
    folder = write_skill(tmp_path, resources=[entry("rules"), entry("nul")])
    (folder / "rules.md").write_bytes(b"\xff\xfe")
    (folder / "nul.md").write_bytes(b"a\0b")
    problems = problems_of(folder)
    assert any("rules.md: not UTF-8" in line for line in problems)
    assert any("nul.md: it holds NUL" in line for line in problems)
