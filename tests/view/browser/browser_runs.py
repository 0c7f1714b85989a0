"""Runs for a browser to look at: trained ones, one judged by hand, one full of markup, one growing."""

from __future__ import annotations

import io
import shutil
import wave
import zlib
from pathlib import Path

import msgspec

from burnish.bench.items import Judged
from burnish.cli.entry import run as command
from burnish.records import (
    Author,
    Evidence,
    Finish,
    MediaPart,
    Message,
    Reward,
    Span,
    Status,
    Task,
    TextPart,
    Trajectory,
    Verdict,
    Visibility,
)
from burnish.store import RunStore, StoredSample

HOSTILE = "<img src=x onerror=alert(1) id=injected>"
"""A run's name; a folder may be called so."""
SCRIPT = "<script>alert('x')</script><b id='injected'>bold</b><img src=x onerror=alert(1)>"
STEPS = 12
PROMPTS = ("Why is the sky blue?", "Name three planets.")
REPLY = "The answer names scattering.\nIt stays with the question.\nI give it 0.75."

RECIPE = """
steps = 6
layer_metrics_every = 2

[model]
path = "tiny"
threads = 1

[task]
kind = "arithmetic"

[[rewards]]
kind = "regex"
name = "digit"
pattern = "[0-9]"

[[rewards]]
kind = "length"
name = "brief"
unit = "characters"
max = 4
edge = 30
weight = 0.5

[optimiser]
learning_rate = 1e-3

[rollout]
prompts = 2
samples = 4
max_tokens = 8

[evaluation]
prompts = 5
every = 3

[checkpoint]
every = 3

[guards]
useless_steps = 1000
"""


def make_runs(folder: Path) -> Path:
    """`first` and `second` really trained, `judged` and a hostile one by hand, and a foreign folder."""
    runs = folder / "runs"
    (folder / "small.toml").write_text(RECIPE)
    for name, seed in (("first", 1), ("second", 2)):
        words = ["train", str(folder / "small.toml"), f"run.name={name}", f"run.seed={seed}"]
        if command([*words, "--quiet", "--runs", str(runs)]) != 0:
            raise RuntimeError(f"run '{name}' could not be trained")
    judged_run(runs / "judged")
    # Its tokens get texts by the tokenizer of a checkpoint; any that knows the ids will do.
    checkpoint = next((runs / "first" / "checkpoints").iterdir())
    shutil.copytree(
        checkpoint,
        runs / "judged" / "checkpoints" / checkpoint.name,
        ignore=shutil.ignore_patterns("*.safetensors", "trainer"),
    )
    hostile_run(runs / HOSTILE)
    (runs / "notes").mkdir()
    return runs


def judged_run(folder: Path) -> Path:
    """Twelve steps of two prompts; answers grow longer and longer ones are paid more."""
    config = {"steps": STEPS, "model.path": "by hand", "run.seed": 3}
    origins = {**dict.fromkeys(config, "judged.toml"), "run.seed": "command line"}
    with RunStore.create(folder, config, origins, recipe="judged") as store:
        for step in range(STEPS):
            samples = [judged_sample(step, index) for index in range(8)]
            store.append_rollouts(step, samples)
            lengths = [sample.trajectory.trained_tokens for sample in samples]
            entropies = {i: [0.5 / (1 + n) for n in range(t)] for i, t in enumerate(lengths)}
            store.append_token_values(step, "entropy", entropies)
            store.append_metrics(step, judged_metrics(step))
        store.append_event("guard", "two judges were late", {}, 3)
        store.append_event("warning", "12% of the rewards have no value.", {}, 4)
        store.finish("finished")
    return folder


def judged_metrics(step: int) -> dict[str, float | None]:
    """The numbers of one step, under the names that training gives them."""
    return {
        "reward/total": 0.2 + 0.05 * step, "reward/judge/mean": 0.2 + 0.05 * step,
        "reward/format/mean": 1.0, "length/mean": 4.0 + step, "policy/entropy": 1.5 - 0.1 * step,
        "groups/useful": 1.0, "groups/total": 2.0,
    }  # fmt: skip


def judged_sample(step: int, index: int) -> StoredSample:
    """Four answers a prompt: three scored by a judge and a check, the last one's judge was late."""
    slot, place = divmod(index, 4)
    task = Task(f"task-{slot}", (Message("user", PROMPTS[slot]),), {"answer": "scattering"})
    words = 2 + step // 2 + 2 * place
    text = " ".join(["needle" if (step, index) == (5, 1) else f"word{n}" for n in range(words)])
    ids = tuple(range(40, 40 + words))
    spans = (
        Span(Author.PROMPT, (30, 31, 32)),
        Span(Author.MODEL, ids, tuple(-0.1 * (1 + n) for n in range(words)), trainable=True),
        Span(Author.TOOL, (60, 61)),
    )
    trajectory = Trajectory(
        id=f"{step}.{slot}.{place}", task_id=task.id, group=f"{step}.{slot}", spans=spans,
        text=text, finish=Finish.LENGTH if place == 2 else Finish.STOP, weight_version=step,
    )  # fmt: skip
    return StoredSample(
        step=step, split="train", index=index, task=task, trajectory=trajectory,
        reward=judged_reward(words, is_late=place == 3), advantage=(-1.0, 0.25, 0.75, 0.0)[place],
        keep=place != 3,
    )  # fmt: skip


def judged_reward(words: int, *, is_late: bool) -> Reward:
    """A judge with verdicts and its raw reply, and a check that saw the label."""
    label = Evidence("contains", "looked for 'scattering'", Visibility.ORACLE)
    form = Reward("format", 1.0, weight=0.25, evidence=(label,))
    if is_late:
        late = Reward.failed("judge", Status.TIMEOUT, "no reply within 60 s")
        return Reward.failed("total", Status.TIMEOUT, "judge: timeout", parts=(late, form))
    value = min(words / 16, 1.0)
    judge = Reward(
        "judge", value, weight=0.75, evidence=(Evidence("judge reply", REPLY, cost_usd=0.0125),),
        verdicts=(
            Verdict("stays with the question", 1.0, evidence=(0,), reason="second line"),
            Verdict("cites a source", None, reason="the judge did not say"),
        ),
        reason="two criteria",
    )  # fmt: skip
    return Reward("total", 0.75 * value + 0.25, parts=(judge, form))


def hostile_run(folder: Path) -> Path:
    """Two steps in which prompts, answers, reasons, judge replies and settings are markup."""
    with RunStore.create(folder, {"steps": 2, SCRIPT: SCRIPT}, {SCRIPT: SCRIPT}) as store:
        media = (store.blobs.add(pixel()), store.blobs.add(silence()))
        for step in range(2):
            store.append_rollouts(step, [hostile_sample(step, index, media) for index in range(2)])
            store.append_metrics(step, {"reward/total": float(step), f"reward/{SCRIPT}/mean": 1.0})
        store.append_event(SCRIPT, SCRIPT, {SCRIPT: SCRIPT}, 1)
        store.finish("finished", {"reason": SCRIPT})
    return folder


def pixel() -> bytes:
    """A PNG of one pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data).to_bytes(4, "big")
        return len(data).to_bytes(4, "big") + kind + data + check

    size = (1).to_bytes(4, "big") * 2 + bytes([8, 0, 0, 0, 0])
    parts = chunk(b"IHDR", size), chunk(b"IDAT", zlib.compress(b"\x00\xff")), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def silence() -> bytes:
    """A WAV of half a second."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(bytes(8000))
    return file.getvalue()


def hostile_sample(step: int, index: int, media: tuple[MediaPart, ...]) -> StoredSample:
    prompt = Message("user", (TextPart(f"{SCRIPT} prompt"), *media))
    task = Task(SCRIPT, (prompt,), {"answer": SCRIPT})
    evidence = (Evidence(SCRIPT, f"{SCRIPT}\nreply", Visibility.ORACLE, error=SCRIPT),)
    verdicts = (Verdict(SCRIPT, 1.0, reason=SCRIPT),)
    judge = Reward(SCRIPT, float(index), evidence=evidence, verdicts=verdicts, reason=SCRIPT)
    return StoredSample(
        step=step, split="train", index=index, task=task,
        trajectory=Trajectory(
            id=f"{step}.{index}", task_id=SCRIPT, group=f"{SCRIPT}{step}",
            spans=(Span(Author.MODEL, (3, 4), (-0.1, -0.2), trainable=True),),
            text=f"{SCRIPT} answer", info={SCRIPT: SCRIPT},
        ),
        reward=Reward("total", float(index), parts=(judge,), reason=SCRIPT),
        advantage=(-1.0, 1.0)[index],
    )  # fmt: skip


def make_results(folder: Path) -> Path:
    """Two judges on five items: right, right, wrong, a tie, no verdict; and a file of another kind."""
    folder.mkdir()
    outcomes = (((0,), (0,)), ((1,), (1,)), ((0,), (1,)), ((0, 1), (0,)), (None, (1,)))
    lines = [
        msgspec.json.encode(judged_item(number, judge, choice, best))
        for judge in ("direct@tiny", "other@tiny")
        for number, (choice, best) in enumerate(outcomes)
    ]
    (folder / "llmbar-direct.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    (folder / "rows.jsonl").write_text('{"prompt": "not a result"}\n')
    return folder


def judged_item(
    number: int, judge: str, choice: tuple[int, ...] | None, best: tuple[int, ...]
) -> Judged:
    reply = Reward("pair", 0.5, evidence=(Evidence("judge reply", f"{SCRIPT}\nthe first one"),))
    return Judged(
        f"item-{number}", judge, "llmbar", choice=choice, best=best, values=(0.5, -0.5),
        status=Status.OK if choice is not None else Status.PARSE_ERROR,
        reason="" if choice is not None else f"no verdict in {SCRIPT}",
        subset="easy" if number < 3 else "hard", seconds=0.5, rewards=(reply,),
        prompt=f"Which is right? {SCRIPT}", responses=("the right one", f"the wrong one {SCRIPT}"),
    )  # fmt: skip
