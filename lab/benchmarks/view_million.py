"""How quick the viewer is over a run with a million samples, and how much memory it takes.

    python lab/benchmarks/view_million.py --folder /tmp/million            # builds the run once, then measures
    python lab/benchmarks/view_million.py --folder /tmp/million --samples 100000

The run is written with the store's own tables, in one transaction a step as training does, from a
pool of generated texts: groups of 16 answers of 100 to 600 characters with their tokens, log-probs,
reward parts and evidence. The server is a process of its own; timings are whole requests over
loopback, seen by the client, and memory is the server's resident set.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec

from burnish.records import Evidence, Reward, Status, Visibility
from burnish.store import RunStore
from burnish.store.manifest import now
from burnish.store.sample import COLUMNS, EVIDENCE_COLUMNS, PART_COLUMNS, flatten

PROMPTS, ANSWERS = 32, 16
POOL = 4000
METRICS = 40
TALK = """
first then because the train leaves at noon we add both distances and divide by hours so remainder
carry total apples pears boxes every second child walks home slowly therefore answer equals sum
minus product of numbers check again wait no let us verify this step with care since half are red
blue green many few left right sold bought price cents dollars
"""
WORDS = TALK.split()


class Answer(NamedTuple):
    """The cells of a row that do not depend on its place."""

    text: str
    tokens: int
    token_ids: str
    loss_mask: str
    logprobs: str
    spans: str
    right: float
    tidy: float
    judged: float | None


def answers(rng: random.Random) -> list[Answer]:
    """A pool of answers with their tokens and marks."""
    pool = []
    for _ in range(POOL):
        size = rng.randint(100, 600)
        text = ""
        while len(text) < size:
            text += rng.choice(WORDS) + " "
        count, asked = len(text) // 4, 24
        ids = [rng.randrange(49_152) for _ in range(asked + count)]
        logprobs = [None] * asked + [round(-rng.expovariate(2.0), 6) for _ in range(count)]
        spans = [
            {"author": "template", "tokens": 4, "trainable": False},
            {"author": "prompt", "tokens": 20, "trainable": False},
            {"author": "model", "tokens": count, "trainable": True},
        ]
        pool.append(
            Answer(
                text=text.strip(),
                tokens=count,
                token_ids=json.dumps(ids, separators=(",", ":")),
                loss_mask=json.dumps([0] * asked + [1] * count, separators=(",", ":")),
                logprobs=json.dumps(logprobs, separators=(",", ":")),
                spans=json.dumps(spans, separators=(",", ":")),
                right=float(rng.random() < 0.4),
                tidy=round(rng.random(), 3),
                judged=None if rng.random() < 0.02 else round(rng.gauss(0, 0.5), 3),
            )
        )
    return pool


def reward_of(answer: Answer) -> Reward:
    """Three parts, one of them a judge with a raw reply that now and then is late."""
    reply = f"Looking at the answer: {answer.text[:160]} ... I give it {answer.judged}."
    if answer.judged is None:
        judge = Reward.failed("judge", Status.TIMEOUT, "no reply within 60 s", weight=0.2)
    else:
        judge = Reward(
            "judge", answer.judged, weight=0.2, evidence=(Evidence("judge", reply),), reason="read"
        )
    seen = Evidence("numeric", f"read {answer.tokens}, expected 42", Visibility.ORACLE)
    parts = (
        Reward("correct", answer.right, weight=0.7, evidence=(seen,), reason="compared"),
        Reward("format", answer.tidy, weight=0.1),
        judge,
    )
    if judge.value is None:
        return Reward.failed("total", Status.TIMEOUT, "judge: timeout", parts=parts)
    value = 0.7 * answer.right + 0.1 * answer.tidy + 0.2 * judge.value
    return Reward("total", round(value, 6), parts=parts)


def build(folder: Path, samples: int) -> None:
    """Write the run, step by step."""
    rng = random.Random(0)
    pool = [(answer, reward_of(answer)) for answer in answers(rng)]
    cells = [(a, r, msgspec.json.encode(r).decode(), list(flatten(r).items())) for a, r in pool]
    steps = -(-samples // (PROMPTS * ANSWERS))
    config = {"steps": steps, "rollout.prompts": PROMPTS, "rollout.samples": ANSWERS}
    with RunStore.create(folder, config, dict.fromkeys(config, "benchmark"), recipe="grpo"):
        pass
    connection = sqlite3.connect(folder / "run.db", isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA cache_size = -262144")
    start = time.perf_counter()
    for step in range(steps):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(
            "INSERT INTO rollouts VALUES (?, ?, ?)", (step, PROMPTS * ANSWERS, now())
        )
        made = list(rows(step, cells, rng))
        parts, evidence = [], []
        for row, nodes in made:
            for name, node in nodes:
                parts.append((row[0], name, node.value, node.weight, str(node.status), node.reason))
                for e in node.evidence:
                    evidence.append(
                        (row[0], name, e.source, e.observation, str(e.visibility), e.error)
                    )
        _many(connection, "samples", COLUMNS, [row for row, _ in made])
        _many(connection, "reward_parts", PART_COLUMNS, parts)
        _many(connection, "evidence", EVIDENCE_COLUMNS, evidence)
        connection.execute("COMMIT")
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            "INSERT INTO metrics (step, name, value) VALUES (?, ?, ?)", metrics(step, rng)
        )
        connection.execute("COMMIT")
        if step % 200 == 0:
            print(f"  step {step} of {steps}, {time.perf_counter() - start:.0f} s", flush=True)
    connection.execute("UPDATE sessions SET ended = ?, status = 'finished'", (now(),))
    connection.close()


def _many(connection: sqlite3.Connection, table: str, columns: Any, made: list[Any]) -> None:
    marks = ", ".join("?" * len(columns))
    connection.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", made)


def rows(step: int, cells: list[Any], rng: random.Random) -> Iterator[tuple[Any, list[Any]]]:
    """The rows of one step; a few groups are all right or all wrong."""
    for slot in range(PROMPTS):
        number = (step * PROMPTS + slot) % 20_000
        task_id = f"story-{number}"
        prompt = f"Story {number}. " + " ".join(rng.choices(WORDS, k=30)) + "?"
        task = json.dumps(
            {
                "id": task_id,
                "messages": [{"role": "user", "content": prompt}],
                "fields": {"answer": "42"},
            }
        )
        chosen = rng.choices(cells, k=ANSWERS) if slot % 4 else [rng.choice(cells)] * ANSWERS
        for index, (answer, reward, tree, nodes) in enumerate(chosen):
            place = slot * ANSWERS + index
            text = f"{answer.text} So it is {step * 7 + place}."
            row = (
                f"{step}/train/{place}", f"{step}.{slot}.{index}", step, "train", place, task_id,
                f"{step}.{slot}", "policy", prompt, text, "stop", step, reward.value,
                str(reward.status), round(rng.gauss(0, 1), 6), 1, 24, answer.tokens,
                answer.token_ids, answer.loss_mask, answer.logprobs, answer.spans, task, tree, "{}",
            )  # fmt: skip
            yield row, nodes


def metrics(step: int, rng: random.Random) -> list[tuple[int, str, float]]:
    """As many numbers a step as training emits."""
    named = {"reward/total": 0.3, "groups/useful": 24.0, "groups/total": 32.0, "length/mean": 88.0}
    named |= {f"other/number_{i}": 1.0 for i in range(METRICS - len(named))}
    return [(step, name, value + 0.01 * rng.random()) for name, value in named.items()]


class Server:
    """`burnish view` in a process of its own."""

    def __init__(self, runs: Path, cache: Path) -> None:
        command = [sys.executable, "-m", "burnish", "view", "--runs", str(runs)]
        command += ["--port", "0", "--no-browser"]
        environment = {**os.environ, "BURNISH_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := re.search(r"http://([^/]+)/\?token=(\S+)", line):
                break
        else:
            raise SystemExit("the server did not start")
        self.client = httpx.Client(
            base_url=f"http://{found[1]}/api/v1",
            headers={"authorization": f"Bearer {found[2]}"},
            timeout=60,
        )

    def get(self, path: str, **parameters: Any) -> Any:
        answer = self.client.get(path, params=parameters)
        answer.raise_for_status()
        return answer.json()

    def memory_mib(self, what: str = "VmRSS") -> float:
        """Resident set of the server, now or (VmHWM) at its highest."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"{what}:\s+(\d+)", text)[1]) / 1024  # type: ignore[index]

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=20)


def pages(late: int) -> list[tuple[str, str, dict[str, Any]]]:
    """Requests that read one place; `late` is a step near the end of the run."""
    return [
        ("list of runs", "/runs", {}),
        ("one run", "/runs/million", {}),
        ("pulse", "/runs/million/pulse", {}),
        ("all curves", "/runs/million/metrics", {}),
        ("newest steps", "/runs/million/steps", {}),
        ("groups of a step", "/runs/million/groups", {"step": late}),
        ("one sample", "/runs/million/sample", {"id": f"{late}/train/17"}),
        ("same prompt over steps", "/runs/million/prompt", {"task": "story-77"}),
        ("first page, newest", "/runs/million/samples", {}),
    ]


def filters(late: int) -> list[tuple[str, dict[str, Any]]]:
    """Searches over all samples."""
    return [
        ("facets", {"facets": 1}),
        ("status timeout", {"status": "timeout"}),
        ("highest rewards", {"sort": "reward"}),
        (
            "reward 0.2 to 0.6, longest first",
            {"reward_min": 0.2, "reward_max": 0.6, "sort": "length"},
        ),
        ("part judge below -0.8", {"part": "judge", "part_max": -0.8}),
        (
            "mixed groups, half of the steps",
            {"signal": "mixed", "step_min": late // 2, "step_max": late},
        ),
        (
            "length 100 to 120, by advantage",
            {"length_min": 100, "length_max": 120, "sort": "advantage"},
        ),
        ("text found in one answer", {"q": "so it is 9999."}),
        ("text found in many", {"q": "therefore answer", "sort": "reward"}),
        ("text found nowhere", {"q": "zebra crossing"}),
        ("text found everywhere", {"q": "so it is", "sort": "reward"}),
        ("two letters", {"q": "zz"}),
        ("text of prompts", {"q": "story 1234.", "in": "prompt"}),
        (
            "text and filters",
            {"q": "left right", "status": "ok", "reward_min": 0.5, "sort": "length"},
        ),
    ]


def timed(server: Server, path: str, parameters: dict[str, Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    answer = server.get(path, **parameters)
    return 1000 * (time.perf_counter() - start), answer


def measure(server: Server, late: int) -> None:
    """Print one line a request: the first time and the median of five more."""
    print(f"{'request':<36} {'first ms':>9} {'again ms':>9}  found")
    for name, path, parameters in pages(late):
        _line(server, name, path, parameters)
    wait_for_index(server)
    for name, parameters in filters(late):
        where = "facets" if parameters.pop("facets", None) else "samples"
        _line(server, name, f"/runs/million/{where}", parameters)
    print(f"memory of the server: {server.memory_mib():.0f} MiB now, "
          f"{server.memory_mib('VmHWM'):.0f} MiB at its highest")  # fmt: skip


def _line(server: Server, name: str, path: str, parameters: dict[str, Any]) -> None:
    first, answer = timed(server, path, parameters)
    again = sorted(timed(server, path, parameters)[0] for _ in range(5))[2]
    found = answer.get("count", "")
    share = answer.get("searched", {}).get("texts", 1.0)
    part = "" if share == 1.0 else f" in the {share:.0%} of the texts that 0.7 s sufficed for"
    print(f"{name:<36} {first:9.1f} {again:9.1f}  {found}{part}", flush=True)


def wait_for_index(server: Server) -> None:
    start = time.perf_counter()
    while not (index := server.get("/runs/million/pulse")["index"])["ready"]:
        time.sleep(0.5)
    print(f"index of {index['rows']} samples ready after {time.perf_counter() - start:.0f} s more")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--folder", type=Path, required=True, help="where the run is kept")
    parser.add_argument("--samples", type=int, default=1_000_000)
    options = parser.parse_args()
    runs = options.folder / f"runs-{options.samples}"
    if not (runs / "million" / "built").exists():
        print(f"building a run with {options.samples} samples in {runs}")
        start = time.perf_counter()
        build(runs / "million", options.samples)
        (runs / "million" / "built").touch()
        print(f"built in {time.perf_counter() - start:.0f} s")
    size = (runs / "million" / "run.db").stat().st_size
    print(f"run.db has {size / 2**30:.2f} GiB")
    server = Server(runs, options.folder / "cache")
    try:
        measure(server, options.samples // (PROMPTS * ANSWERS) * 9 // 10)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
