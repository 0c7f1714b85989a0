"""Every route over runs that were really trained, checked against the store."""

from __future__ import annotations

import pytest
from viewed_runs import RECIPE, open_client

from burnish.cli.entry import run
from burnish.store import RunStore, StoredSample

FLAT = RECIPE.replace("min = 2", "max = 1000").replace("min = 4", "max = 1000")


@pytest.fixture
def stored(runs):
    with RunStore.open(runs / "first", read_only=True) as store:
        return list(store.samples())


def written(sample: StoredSample) -> int:
    """Tokens that the model wrote, trained on or not."""
    return sum(len(span.token_ids) for span in sample.trajectory.spans if span.author == "model")


def test_the_list_of_runs(client):
    lines = {line["name"]: line for line in client.get("/runs")["runs"]}
    first = lines["first"]
    assert (first["status"], first["live"], first["steps"], first["planned"]) == (
        "finished", False, 6, 6,
    )  # fmt: skip
    assert first["samples"] == 6 * 8 + 3 * 5
    assert first["reward"]["name"] == "reward/total"
    assert len(first["reward"]["spark"]) == 6
    assert first["reward"]["last"] == first["reward"]["spark"][-1]
    assert first["held_out_first"]["step"] == 0
    assert first["held_out_last"]["step"] == 6
    assert first["held_out_last"]["prompts"] == 5
    assert first["model"] == "tiny"


def test_one_run_with_its_config_and_where_it_came_from(client):
    page = client.run("first")
    settings = {one["key"]: one for one in page["config"]}
    assert settings["run.seed"]["value"] == 1
    assert settings["run.seed"]["origin"].startswith("command line")
    assert "small.toml" in settings["rollout.samples"]["origin"]
    assert (page["first_step"], page["last_step"]) == (0, 5)
    assert [one["step"] for one in page["evaluations"]] == [0, 3, 6]
    assert {one["measure"] for one in page["evaluations"]} == {"reward"}
    assert page["sessions"][0]["status"] == "finished"
    assert page["checkpoints"]
    assert page["line"]["key"] == "first"


def test_curves_are_thinned_and_asked_for_by_name_and_step(client, runs):
    with RunStore.open(runs / "first", read_only=True) as store:
        points = store.metrics("reward/total")["reward/total"]
    page = client.run("first", "/metrics")
    assert set(page["curves"]) == set(page["names"])
    whole = page["curves"]["reward/total"]
    assert list(zip(whole["steps"], whole["values"], strict=True)) == [tuple(p) for p in points]
    assert [score["step"] for score in page["held_out"]] == [0, 3, 6]
    some = client.run("first", "/metrics", name=["reward/total"], since=3)
    assert list(some["curves"]) == ["reward/total"]
    assert some["curves"]["reward/total"]["steps"] == [4, 5]
    thin = client.run("first", "/metrics", name="reward/total", points=4)["curves"]["reward/total"]
    assert (thin["of"], thin["thinned"]) == (6, True)
    assert len(thin["steps"]) <= 4


def test_steps_newest_first_in_pages(client):
    page = client.run("first", "/steps", limit=4)
    assert [one["number"] for one in page["steps"]] == [6, 5, 4, 3]
    assert [one["step"] for one in page["steps"]] == [5, 4, 3, 2]
    assert page["total"] == 6
    assert page["steps"][0]["reward"] is not None
    rest = client.run("first", "/steps", before=page["next"], limit=4)
    assert [one["number"] for one in rest["steps"]] == [2, 1, 0]
    assert rest["next"] is None


def test_evaluations_stand_beside_the_step_before_them(client):
    """After 0, 3 and 6 steps: the start, and the last of all, have their place in the list."""
    page = client.run("first", "/steps")
    evaluated = {one["number"]: one["evaluations"] for one in page["steps"] if one["evaluations"]}
    assert list(evaluated) == [6, 3, 0]
    assert [one["name"] for one in evaluated[6]] == ["held_out"]
    assert evaluated[6][0]["score"]["doubt"] == "too few to say"
    assert page["steps"][-1]["step"] is None
    assert page["steps"][-1]["reward"] is None
    last = client.run("first", "/groups", step=6, split="eval:held_out")
    assert last["number"] == 6
    assert {one["split"]: one["step"] for one in last["splits"]} == {"train": 5, "eval:held_out": 6}
    assert (last["previous_step"], last["next_step"]) == (3, None)
    assert client.run("first", "/groups", step=0, split="eval:held_out")["number"] == 0


def test_groups_of_a_step(client, stored):
    page = client.run("first", "/groups", step=2)
    assert page["total"] == 2
    assert sum(page["signals"].values()) == 2
    assert (page["previous_step"], page["next_step"]) == (1, 3)
    assert "reward/total" in page["metrics"]
    own = [s for s in stored if s.step == 2 and s.split == "train"]
    shown = [row for group in page["groups"] for row in group["samples"]]
    assert [row["id"] for row in shown] == [s.id for s in own]
    assert [row["reward"] for row in shown] == [s.reward.value for s in own]
    assert shown[0]["parts"] == own[0].reward.components
    held = client.run("first", "/groups", step=3, split="eval:held_out")
    assert held["total"] == 5
    assert (
        "no samples of step 100; it has steps 1 to 6"
        in client.run("first", "/groups", 404, step=99)["error"]
    )


def test_one_group_side_by_side(client, stored):
    key = stored[-1].trajectory.group if stored[-1].split == "train" else "5.0"
    page = client.run("first", "/group", step=5, key=key, split="train")
    own = {s.id: s for s in stored if s.step == 5 and s.trajectory.group == key}
    assert page["size"] == len(page["members"]) == 4
    assert {m["id"] for m in page["members"]} == set(own)
    rewards = [m["reward"]["value"] for m in page["members"]]
    assert rewards == sorted(rewards, reverse=True)
    for member in page["members"]:
        assert member["response"] == own[member["id"]].trajectory.text
        assert member["advantage"] == own[member["id"]].advantage
    assert page["task"]["messages"][0]["role"] in ("user", "system")
    assert {page["previous"], page["next"]} == {None, "5.1" if key == "5.0" else "5.0"}


def test_one_sample_whole(client, stored):
    wanted = next(s for s in stored if s.id == "4/train/3")
    page = client.run("first", "/sample", id="4/train/3")
    assert page["name"] == "train-5-1-4"
    assert client.run("first", "/sample", id="train-5-1-4") == page
    trajectory = wanted.trajectory
    assert page["response"] == trajectory.text
    assert page["reward"]["value"] == wanted.reward.value
    assert [part["name"] for part in page["reward"]["parts"]] == ["brief", "wordy"]
    assert page["reward"]["parts"][0]["evidence"] or page["reward"]["parts"][0]["reason"]
    tokens = page["tokens"]
    assert tokens["ids"] == list(trajectory.token_ids)
    assert tokens["mask"] == list(trajectory.loss_mask)
    assert [p for p in tokens["logprobs"] if p is not None] == list(trajectory.logprobs)
    assert tokens["advantage_kind"] == "rollout"
    assert {a for a in tokens["advantages"] if a is not None} == {wanted.advantage}
    assert tokens["tokenizer"].startswith("tokenizer of checkpoint step-")
    assert trajectory.text in "".join(tokens["texts"])
    assert {span["author"] for span in tokens["spans"]} >= {"prompt", "model"}
    assert tokens["spans"][-1]["end"] == tokens["total"] == len(trajectory.token_ids)
    assert (page["previous"], page["next"]) == ("train-5-1-3", "train-5-2-1")
    assert page["group"]["size"] == 4
    assert page["id"] in [member["id"] for member in page["group"]["members"]]
    assert page["why"]
    by_trajectory = client.run("first", "/sample", id=trajectory.id)
    assert by_trajectory["id"] == "4/train/3"
    assert "has no sample" in client.run("first", "/sample", 404, id="4/train/33")["error"]


def test_the_same_prompt_across_steps(client, stored):
    task = next(s for s in stored if s.split == "eval:held_out").task.id
    page = client.run("first", "/prompt", task=task)
    assert [one["step"] for one in page["steps"]] == [6, 3, 0]
    assert page["total"] == 3
    cut = client.run("first", "/prompt", task=task, limit=2)
    assert cut["next"] == 3
    rest = client.run("first", "/prompt", task=task, before=cut["next"])
    assert [one["step"] for one in rest["steps"]] == [0]
    assert client.run("first", "/prompt", 404, task="no such task")["error"]


def test_the_newest_samples_come_first_and_page_to_the_end(client, stored):
    seen: list[str] = []
    after = ""
    while True:
        page = client.run("first", "/samples", limit=20, after=after)
        assert page["count"] == len(stored)
        seen += [row["id"] for row in page["samples"]]
        if page["next"] is None:
            break
        after = page["next"]
    assert seen == [s.id for s in reversed(stored)]


def test_filters_and_text_agree_with_the_store(client, stored):
    client.indexed("first")

    def ids(**filters: object) -> set[str]:
        page = client.run("first", "/samples", limit=200, **filters)
        assert page["count"] == len(page["samples"])
        return {row["id"] for row in page["samples"]}

    middle = sorted(s.reward.value or 0.0 for s in stored)[len(stored) // 2]
    assert ids(reward_min=middle) == {s.id for s in stored if (s.reward.value or 0) >= middle}
    assert ids(split="eval:held_out") == {s.id for s in stored if s.split == "eval:held_out"}
    assert ids(step_min=2, step_max=3, split="train") == {
        s.id for s in stored if s.step in (1, 2) and s.split == "train"
    }
    # Training steps are stored from 0, evaluations by the steps before them: both as people count.
    evaluated = {s.step for s in stored if s.split == "eval:held_out"}
    assert evaluated
    for step in evaluated:
        assert ids(step_min=step, step_max=step) == {
            s.id for s in stored if s.step + (s.split != "eval:held_out") == step
        }
    assert ids(part="brief", part_max=0.5) == {
        s.id for s in stored if (s.reward.components["brief"] or 0) <= 0.5
    }
    assert ids(length_max=4) == {s.id for s in stored if written(s) <= 4}
    assert ids(status="ok") == {s.id for s in stored}
    assert ids(status="timeout") == set()
    task = stored[0].task
    assert ids(task=task.id) == {s.id for s in stored if s.task.id == task.id}
    assert stored[0].id in ids(q=task.prompt.upper(), **{"in": "prompt"})
    word = stored[0].trajectory.text[:3]
    assert ids(q=word, **{"in": "response"}) == {
        s.id for s in stored if word.casefold() in s.trajectory.text.casefold()
    }
    mixed = ids(signal="mixed", split="train")
    assert mixed
    assert mixed == {
        row["id"]
        for step in range(6)
        for group in client.run("first", "/groups", step=step)["groups"]
        if group["signal"] == "mixed"
        for row in group["samples"]
    }


def test_facets_count_every_sample(client, stored):
    client.indexed("first")
    found = client.run("first", "/facets")
    assert found["splits"] == {"train": 48, "eval:held_out": 15}
    assert sum(found["signals"].values()) == len(stored)
    assert set(found["parts"]) == {"brief", "wordy"}
    assert found["reward"]["count"] == sum(found["reward"]["bins"]) == len(stored)
    assert (found["step"]["low"], found["step"]["high"]) == (0, 6)


def test_two_runs_compared(client):
    page = client.get("/compare", a="first", b="second")
    differs = {one["key"]: (one["a"], one["b"]) for one in page["differs"]}
    assert differs["run.seed"] == (1, 2)
    assert page["steps"] == [0, 3, 6]
    assert set(page["curves"]) >= {"reward/total", "length/mean"}
    assert page["a"]["key"] == "first"
    if page["problem"]:  # other seeds may draw other held-out prompts; then it is said
        assert page["test"] is None
        assert "cannot be compared" in page["problem"]
    refused = client.get("/compare", a="first", b="second", step=1)["problem"]
    assert "was held out after [0, 3, 6] steps, not 1" in refused
    itself = client.get("/compare", 400, a="first", b="first")["error"]
    assert itself == "run 'first' is compared with itself; expected two different runs."


def test_warnings_of_a_run_are_events_that_others_do_not_push_out(tmp_path):
    """Both rewards pay every answer the same, so that no step teaches anything."""
    (tmp_path / "flat.toml").write_text(FLAT)
    words = ["train", str(tmp_path / "flat.toml"), "run.name=flat", "--quiet", "steps=2"]
    assert run([*words, "--runs", str(tmp_path / "runs")]) == 0
    with RunStore.open(tmp_path / "runs" / "flat") as store:
        warned = [(event.step, event.message) for event in store.events("warning")]
        useless = [step for step, text in warned if text.startswith("no useful group: within")]
        assert useless == [0]
        for number in range(60):
            store.append_event("note", f"note {number}")
    with open_client(tmp_path / "runs") as client:
        shown = [event["kind"] for event in client.run("flat")["events"]]
    assert shown.count("warning") == len(warned)
    assert shown.count("note") == 50
    assert shown[-1] == "note"


def test_the_audit_answers_or_says_why_not(client):
    page = client.run("first", "/audit")
    assert page["available"] == (page["audit"] is not None)
    if page["available"]:
        assert page["audit"]["run"] == "first"


@pytest.mark.parametrize(
    ("page", "parameters", "line"),
    [
        ("/samples", {"limit": 201}, "limit is '201'; expected a whole number, 1 to 200"),
        ("/samples", {"reward_min": "nan"}, "expected a finite number"),
        ("/samples", {"statis": "ok"}, "Did you mean 'status'?"),
        ("/samples", {"status": "okay"}, "status is 'okay'; expected one of ok, abstain"),
        ("/samples", {"sort": "rowid; DROP TABLE"}, "expected one of step, reward"),
        ("/samples", {"after": "x' OR 1"}, "expected the 'next' of an answer"),
        ("/samples", {"q": "x" * 1001}, "q has 1001 characters"),
        ("/group", {"step": 1}, "the parameter 'key' is missing"),
    ],
)
def test_a_wrong_parameter_is_one_line(client, page, parameters, line):
    error = client.run("first", page, 400, **parameters)["error"]
    assert line in error
    assert "\n" not in error


def test_any_other_address_is_the_page(client):
    for path in ("/", "/runs/first/samples", "/compare"):
        answer = client.http.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("sort", ["reward", "length", "advantage", "step"])
@pytest.mark.parametrize("order", ["asc", "desc"])
def test_every_order_pages_through_all_samples(
    client, stored: list[StoredSample], sort: str, order: str
) -> None:
    client.indexed("first")
    seen = []
    after = ""
    while True:
        page = client.run(
            "first", "/samples", sort=sort, order=order, limit=9, after=after, split="train"
        )
        assert page["searched"]["complete"]
        seen += page["samples"]
        if page["next"] is None:
            break
        after = page["next"]
    assert sorted(row["id"] for row in seen) == sorted(s.id for s in stored if s.split == "train")
    values = [row[sort] for row in seen if row[sort] is not None]
    assert values == sorted(values, reverse=order == "desc")
