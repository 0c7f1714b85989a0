"""How close judge calls over HTTP come to the ideal time, and whether memory stays flat.

    python lab/benchmarks/judge_throughput.py                  # 5,000 calls of 200 ms, 64 at a time
    python lab/benchmarks/judge_throughput.py --calls 500      # a quick look

A server in its own process waits 200 ms and answers each question with a verdict. The client is
what a user has: `OpenAILM` under its pool, `JudgeModel`, a pair judge with its prompt and its
strict reader. The ideal time is calls / concurrency x 0.2 s; everything above it is ours.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
import time
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from burnish.lm.http import OpenAILM, Prices
from burnish.lm.jobs import Limits
from burnish.records import Message, Response, Task
from burnish.rewards.judges import CallLog, DirectPair, JudgeModel
from burnish.rewards.scorer import checked, gather

MODEL = "loopback-judge"
VERDICT = json.dumps({"reasons": "A names the right city and B does not.", "winner": "A"})


def serve(door: Connection, delay_s: float) -> None:
    """Answer chat completions on a free port until the process is ended."""
    body = json.dumps(
        {
            "model": MODEL,
            "choices": [
                {"index": 0, "finish_reason": "stop", "message": {"content": VERDICT}},
            ],
            "usage": {"prompt_tokens": 420, "completion_tokens": 24},
        }
    ).encode()
    head = (
        f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    answer = head.encode() + body

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request = await reader.readuntil(b"\r\n\r\n")
                lines = request.lower().split(b"\r\n")
                sizes = [int(line[15:]) for line in lines if line.startswith(b"content-length:")]
                await reader.readexactly(sum(sizes))
                await asyncio.sleep(delay_s)
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def main() -> None:
        server = await asyncio.start_server(connection, "127.0.0.1", 0)
        door.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


def memory_mb() -> float:
    """Resident memory of this process now; the peak where the system does not tell."""
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def measure(port: int, options: argparse.Namespace) -> dict[str, float]:
    """Ask all questions; wall and CPU time, and memory on the way."""
    done = 0
    memory: list[float] = []
    with TemporaryDirectory() as folder:
        url = f"http://127.0.0.1:{port}/v1"
        prices = Prices(prompt_usd=0.5, completion_usd=1.5)
        limits = Limits(concurrency=options.concurrency)
        async with OpenAILM(url, MODEL, limits=limits, prices=prices) as lm:
            judge = JudgeModel(
                lm,
                cache=CallLog(Path(folder) / "cache.jsonl") if options.keep else None,
                record=Path(folder) / "record.jsonl" if options.keep else None,
            )
            pair = DirectPair(judge)

            async def one(number: int) -> float | None:
                nonlocal done
                task = Task(f"t{number}", (Message("user", f"Question {number}? " + "why " * 80),))
                texts = (f"It is Paris, as {number} says. " * 8, f"It is Rome ({number}). " * 8)
                responses = [Response(f"{number}/{i}", text) for i, text in enumerate(texts)]
                rewards = await checked(pair, task, responses)
                done += 1
                if done in (options.calls // 10, options.calls // 2, options.calls):
                    memory.append(memory_mb())
                return rewards[0].value

            # Connections are opened and code is warm before the clock starts.
            numbers = range(options.concurrency)
            await gather([partial(one, -1 - n) for n in numbers], limit=options.concurrency)
            done = 0
            start, cpu = time.perf_counter(), time.process_time()
            values = await gather(
                [partial(one, n) for n in range(options.calls)], limit=options.concurrency
            )
            wall_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu
            spent = judge.spent
    decided = sum(value == 1.0 for value in values)
    if decided != options.calls or spent.calls != options.calls + options.concurrency:
        raise SystemExit(
            f"{decided} of {options.calls} verdicts, {spent}: the numbers mean nothing"
        )
    return {
        "wall_s": wall_s,
        "ideal_s": options.calls / options.concurrency * options.delay_s,
        "cpu_s": cpu_s,
        "memory_tenth_mb": memory[0],
        "memory_half_mb": memory[1],
        "memory_end_mb": memory[2],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--delay-s", type=float, default=0.2)
    parser.add_argument("--keep", action="store_true", help="with a cache file and a record")
    options = parser.parse_args()
    here, there = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(
        target=serve, args=(there, options.delay_s), daemon=True
    )
    server.start()
    try:
        found = anyio.run(measure, here.recv(), options)
    finally:
        server.terminate()
    print(
        f"{options.calls} calls of {options.delay_s * 1000:g} ms at {options.concurrency} at a "
        f"time on {os.cpu_count()} cores{', cache and record kept' if options.keep else ''}"
    )
    print(
        f"wall {found['wall_s']:.2f} s, ideal {found['ideal_s']:.2f} s: "
        f"{found['wall_s'] / found['ideal_s']:.3f} x ideal; "
        f"{found['cpu_s'] / options.calls * 1e3:.2f} ms of CPU a call"
    )
    print(
        f"memory {found['memory_tenth_mb']:.1f} MB after a tenth, {found['memory_half_mb']:.1f} "
        f"after half, {found['memory_end_mb']:.1f} at the end"
    )


if __name__ == "__main__":
    main()
