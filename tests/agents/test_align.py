"""`burnish.align` on the tiny model: the whole way, kills in between, mistakes in one line."""

from __future__ import annotations

import json

import pytest

import burnish
from burnish.agents.policyalign.guards import GuardVerdict
from burnish.api import align as align_module, align_steps
from burnish.api.align import align
from burnish.cli.align import align as command
from burnish.errors import UserError
from burnish.lm import ScriptedLM
from burnish.records import Status

POLICY = "You are careful.\n- Medicine: never advise on it.\n\n## Examples\nUser: which pill?\nAssistant: no."
SETTINGS = ["train.batch=2", "evaluation.prompts=2", "optimiser.learning_rate=1e-3"]


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.md").write_text(POLICY)
    rows = [
        {"instruction": f"Tell me about {kind} thing {i}", "kind": kind, "clause_id": "medicine"}
        for kind, count in (("violating", 8), ("benign", 4))
        for i in range(count)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def go(*words, **more):
    given = {"instructions": "rows.jsonl", "steps": 2, "max_tokens": 4, "keep_truncated": True}
    given |= {"force": True, "show": False, **more}
    return align("tiny", "policy.md", *SETTINGS, *words, **given)


def contents(folder):
    names = ("kept.jsonl", "before.jsonl", "told.jsonl", "after.jsonl", "report.json")
    return {name: (folder / name).read_bytes() for name in names}


def test_the_whole_way_and_again(place):
    told = []
    found = go(tell=told.append)
    assert found.run.status == "finished"
    assert found.weights.is_dir()
    kept = [json.loads(line) for line in (place / "aligned/kept.jsonl").read_text().splitlines()]
    assert {row["kind"] for row in kept} == {"violating", "benign"}
    assert set(kept[0]) == {"id", "messages", "clause_id", "kind", "sensitivity"}
    held = {json.loads(line)["id"] for line in (place / "aligned/after.jsonl").open()}
    assert not held & {row["id"] for row in kept}
    report = json.loads((place / "aligned/report.json").read_text())
    assert set(report["arms"]) == {"before", "policy in context", "after"}
    assert report["about"]["policy"] == align_module._digest("policy", place / "policy.md")
    assert "violations" in (place / "aligned/report.md").read_text()
    assert any("sensitivity: 9 of 9" in line for line in told)
    again = []
    assert go(tell=again.append).report == found.report
    assert again == ["finished already: aligned/report.md"]
    with pytest.raises(
        UserError, match=r"other settings \(steps\); choose another folder with out="
    ):
        go(steps=3)
    assert burnish.align is align


class Killed(BaseException):
    pass


@pytest.mark.parametrize("after", [1, 2, 4, 6])
def test_killed_anywhere_and_continued_is_the_same(place, monkeypatch, after):
    whole = contents(go(out="whole").folder)
    monkeypatch.setattr(align_steps, "CHUNK", 3)
    journal, count = align_steps.Alignment._journal, []

    async def killed(self, name, kind, items, work):
        async def once(chunk):
            count.append(name)
            if len(count) == after:
                raise Killed
            return await work(chunk)

        return await journal(self, name, kind, items, once)

    monkeypatch.setattr(align_steps.Alignment, "_journal", killed)
    with pytest.raises(Killed):
        go(out="killed")
    monkeypatch.setattr(align_steps.Alignment, "_journal", journal)
    found = contents(go(out="killed").folder)
    assert found.keys() == whole.keys()
    for name in whole:
        assert found[name] == whole[name], name


def test_a_policy_that_is_not_followed_stops_before_training(place):
    with pytest.raises(UserError, match=r"does not change what the model does.*## Examples"):
        go(force=False)
    assert not (place / "aligned/run").exists()


def test_requests_are_synthesised_where_none_are_given(place):
    texts = iter(range(100))
    lm = ScriptedLM(
        lambda m, i: json.dumps([f"request {next(texts)} about one more thing" for _ in range(8)])
    )
    found = go(instructions=None, generator=lm, per_clause=6)
    assert found.report.about["requests"] == 9
    assert (place / "aligned/synthesis.jsonl").is_file()


def test_a_guard_that_failed_is_asked_again_by_the_same_call(place):
    class Guard:
        """Gone for the first answer of each arm; a verdict for the others."""

        name, is_gone, asked = "guard", True, 0

        async def judge(self, prompt, response):
            type(self).asked += 1
            if self.is_gone and "thing 1" in prompt:
                return GuardVerdict(None, None, Status.INFRA_ERROR, "503")
            return GuardVerdict(True, False)

    told = []
    everything = "".join(
        json.dumps({"prompt": f"thing {i}", "expected": "refuse"}) + "\n" for i in range(3)
    )
    (place / "more.jsonl").write_text(everything)
    first = go(guard=Guard(), evaluate="more.jsonl", tell=told.append)
    failures = first.report.about["guard_failures"]
    assert failures >= 3  # one at least in each arm
    assert any("503" in line and "asks it again" in line for line in told)
    Guard.is_gone, Guard.asked = False, 0
    second = go(guard=Guard(), evaluate="more.jsonl")
    assert (Guard.asked, second.report.about["guard_failures"]) == (failures, 0)
    assert go(guard=Guard(), evaluate="more.jsonl").report == second.report
    assert Guard.asked == failures


def test_advice_can_be_followed_in_the_same_folder_until_something_is_trained(place):
    with pytest.raises(UserError, match=r"Raise --max-tokens, or keep them with --keep-truncated"):
        go(keep_truncated=False, max_tokens=1)
    told = []
    with pytest.raises(UserError, match=r"other settings \(score\)"):
        go(max_tokens=1, score="first-token", keep_truncated=False)
    found = go(max_tokens=2, tell=told.append)
    assert told[0].startswith("nothing was trained yet: goes on with another ")
    assert "keep_truncated, max_tokens" in told[0]
    assert any("sensitivity: 9 of 9" in line for line in told)
    assert found.run.status == "finished"
    with pytest.raises(UserError, match=r"other settings \(keep_truncated\)"):
        go(max_tokens=2, keep_truncated=False)


def test_the_command_prints_json(place, capsys):
    given = {"instructions": place / "rows.jsonl", "steps": 1, "max_tokens": 3}
    code = command(
        model="tiny", policy=place / "policy.md", words=SETTINGS, out=place / "x", keep_truncated=True, force=True,
        as_json=True, **given,
    )  # fmt: skip
    assert code == 0
    assert set(json.loads(capsys.readouterr().out)["arms"]) >= {"before", "after"}


def test_an_interruption_says_what_is_kept(place, monkeypatch, capsys):
    whole = contents(go(out="whole").folder)

    def stopped(self):
        raise KeyboardInterrupt("interrupted after 1 of 2 steps; the same call continues it")

    monkeypatch.setattr(align_steps.Alignment, "_train", stopped)
    given = {"instructions": place / "rows.jsonl", "steps": 2, "max_tokens": 4}
    words = {"out": place / "cut", "keep_truncated": True, "force": True, **given}
    assert command(model="tiny", policy=place / "policy.md", words=SETTINGS, **words) == 130
    said = " ".join(capsys.readouterr().err.split())
    assert "interrupted while the model was trained (interrupted after 1 of 2 steps" in said
    assert "everything before is kept in cut, and the same command continues there" in said
    with pytest.raises(KeyboardInterrupt, match="the same call continues there"):
        go(out="cut2")
    monkeypatch.undo()
    monkeypatch.chdir(place)
    assert contents(go(out="cut2").folder) == whole
