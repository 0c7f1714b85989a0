"""Child of speed.py: new tokens a second, burnish's engine beside transformers' generate.

    python lab/benchmarks/_speed_generation.py JOB OUT

Both sample at temperature 1 from the same weights, in the same dtype, after the same prompts, and
every row runs to its budget; only in the tail may burnish's rows end earlier, with their first
line. Rows of the result are written as they come.
"""

from __future__ import annotations

import copy
import dataclasses
import gc
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from _speed_floor import Group, Weights, clock, generation_floor
from _speed_plan import EXPLAIN
from _speed_records import GenerationJob, Row, Tail, read_job, say

from burnish.lm.base import Sampling
from burnish.lm.folder import find_folder, load_model
from burnish.lm.local import LocalLM
from burnish.lm.tokenizer import Tokenizer
from burnish.lm.weights import read_json
from burnish.models import register
from burnish.seeds import derive
from burnish.tasks.arithmetic import Arithmetic, ArithmeticTasks
from burnish.tasks.base import TaskSet
from burnish.tasks.config import build as build_tasks
from burnish.tasks.files import GSM8K

Prompt = tuple[int, ...]


class Work(NamedTuple):
    """A batch: the prompt and the budget of each row."""

    layout: str
    prompts: list[Prompt]
    budgets: list[int]
    ends: tuple[int, ...] = ()
    """Token ids that end a row; none: every row runs to its budget."""

    def groups(self, lengths: Sequence[int]) -> list[Group]:
        """Rows of these lengths by their prompt."""
        found: dict[Prompt, list[int]] = {}
        for prompt, length in zip(self.prompts, lengths, strict=True):
            found.setdefault(prompt, []).append(length)
        return [Group(len(prompt), rows) for prompt, rows in found.items()]


def main() -> None:
    job, out = read_job(GenerationJob)
    rows: list[Row] = []
    for dtype in job.plan.dtypes:
        for row in _measure(job, dtype):
            rows.append(row)
            out.write_bytes(msgspec.json.encode(rows))
            say(
                f"{row.program} {row.layout} {row.dtype} {row.batch} x {row.measured_tokens}: "
                f"{min(row.seconds):.3f} s, warm-up {row.warm_up_s:.2f} s"
            )


def _measure(job: GenerationJob, dtype: str) -> Iterator[Row]:
    engine = Engine(job, dtype)
    peer = Peer(job, dtype)
    plan = job.plan
    if job.part == "tail":
        for size in plan.tails:
            yield from _tail(job, size, engine, peer)
        return
    prompts = _prompts(job, _tasks(job), max(plan.batches))
    for batch in plan.batches:
        for new in plan.new_tokens:
            firsts = prompts[: batch // plan.samples]
            grouped = [prompt for prompt in firsts for _ in range(plan.samples)]
            yield engine.measure(Work("groups", grouped, [new] * batch))
            distinct = Work("distinct", prompts[:batch], [new] * batch)
            yield engine.measure(distinct)
            yield peer.measure(distinct)


def _tail(job: GenerationJob, size: Tail, engine: Engine, peer: Peer) -> Iterator[Row]:
    """Rows that end by themselves, and the same rows made to run as far as the longest of them."""
    firsts = _prompts(
        job,
        ArithmeticTasks(Arithmetic(level=4, instruction=EXPLAIN), seed=0),
        size.rows // job.plan.samples,
    )
    rows = [prompt for prompt in firsts for _ in range(job.plan.samples)]
    ends = (*engine.own_ends, *line_ends(engine.tokenizer))
    tail = engine.measure(Work("tail", rows, [size.longest] * len(rows), ends))
    yield tail
    full = Work("full", rows, [tail.measured_tokens] * len(rows))
    yield engine.measure(full)
    yield peer.measure(full)


def line_ends(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Every id whose text holds a line break: with these a row ends after its first line."""
    ids = range(tokenizer.vocab_size)
    return tuple(i for i in ids if "\n" in tokenizer.decode([i], skip_special=False))


class Engine:
    """burnish's engine; its time covers token ids, log-probs and texts."""

    def __init__(self, job: GenerationJob, dtype: str) -> None:
        self.job = job
        self.dtype = dtype
        loaded = load_model(job.model, dtype=dtype, device=job.device)
        self.tokenizer = copy.copy(loaded.tokenizer)
        self.own_ends = self.tokenizer.eos_ids
        self.lm = LocalLM(dataclasses.replace(loaded, tokenizer=self.tokenizer))
        self.weights = Weights.of(loaded)
        self.device = loaded.device

    def measure(self, work: Work) -> Row:
        self.tokenizer.eos_ids = work.ends
        batches = [self._requests(work, seed) for seed in range(1 + self.job.repeats)]
        if work.ends:
            # The seeds decide how long rows become: timed runs have the same ones.
            batches[1:] = [batches[1]] * self.job.repeats
        began = clock(self.device)
        self._run(batches[0], work)
        warm_up_s = clock(self.device) - began
        made: list[list[int]] = []
        seconds = repeat(
            lambda i: made.append(self._run(batches[1 + i], work)), self.device, self.job
        )
        lengths = made[-1]
        floor_s = generation_floor(self.weights, self.job.rates[self.dtype], work.groups(lengths))
        is_same = all(other == lengths for other in made)
        return Row(
            program="burnish",
            layout=work.layout,
            dtype=self.dtype,
            batch=len(work.prompts),
            new_tokens=max(work.budgets),
            measured_tokens=max(lengths),
            tokens=sum(lengths),
            prompt_tokens=sum(map(len, work.prompts)),
            warm_up_s=warm_up_s,
            seconds=seconds,
            floor_s=floor_s,
            lengths=lengths if work.ends else [],
            note="" if is_same else "lengths differ between runs with the same seeds",
        )

    def _requests(self, work: Work, seed: int) -> list[Any]:
        """Neighbours with the same prompt and budget are one request of n completions."""
        rows = zip(work.prompts, work.budgets, strict=True)
        requests = []
        for index, ((prompt, budget), same) in enumerate(itertools.groupby(rows)):
            own = derive("speed", seed, index)
            sampling = Sampling(n=len(list(same)), max_tokens=budget, seed=own)
            requests.append(self.lm.request(prompt, sampling))
        return requests

    def _run(self, requests: list[Any], work: Work) -> list[int]:
        """How many tokens each row became."""
        made = self.lm.sample_batch(requests)
        got = [len(completion.token_ids) for group in made for completion in group]
        if not work.ends and got != work.budgets:
            short = sum(g < b for g, b in zip(got, work.budgets, strict=True))
            raise RuntimeError(f"{short} of {len(got)} rows ended before their budget")
        return got


class Padded(NamedTuple):
    """Prompts as `generate` takes them, on the device."""

    ids: torch.Tensor
    mask: torch.Tensor


class Peer:
    """transformers' generate, prompts padded on the left."""

    def __init__(self, job: GenerationJob, dtype: str) -> None:
        from transformers import AutoModelForCausalLM

        self.job = job
        self.dtype = dtype
        folder = find_folder(job.model)
        self.pad = Tokenizer.from_folder(folder).pad_id
        register(read_json(folder / "config.json").get("model_type"))
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        self.device = torch.device(job.device)
        self.model = model.to(self.device).eval()

    def measure(self, work: Work) -> Row:
        new = max(work.budgets)
        width = max(map(len, work.prompts))
        ids = [[self.pad] * (width - len(prompt)) + list(prompt) for prompt in work.prompts]
        mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in work.prompts]
        batch = Padded(*(torch.tensor(rows, device=self.device) for rows in (ids, mask)))
        began = clock(self.device)
        self._run(batch, 2)
        warm_up_s = clock(self.device) - began
        measured = min(new, self._fitting(batch))
        seconds = repeat(lambda _: self._run(batch, measured), self.device, self.job)
        return Row(
            program="generate",
            layout=work.layout,
            dtype=self.dtype,
            batch=len(work.prompts),
            new_tokens=new,
            measured_tokens=measured,
            tokens=measured * len(work.prompts),
            prompt_tokens=sum(map(len, work.prompts)),
            warm_up_s=warm_up_s,
            seconds=seconds,
            floor_s=0.0,
            note="" if measured == new else f"timed over {measured} of {new} new tokens",
        )

    def _fitting(self, batch: Padded) -> int:
        """How many new tokens one run makes within the patience, from two short runs."""
        marks = [clock(self.device)]
        for new in (2, 6):
            self._run(batch, new)
            marks.append(clock(self.device))
        first, second = marks[1] - marks[0], marks[2] - marks[1]
        a_token = max((second - first) / 4, 1e-6)
        return max(8, int((self.job.patience_s - first) / a_token))

    @torch.inference_mode()
    def _run(self, batch: Padded, new: int) -> None:
        width = batch.ids.shape[1]
        more = {"cache_implementation": self.job.cache} if self.job.cache else {}
        made = self.model.generate(
            input_ids=batch.ids,
            attention_mask=batch.mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            min_new_tokens=new,
            max_new_tokens=new,
            pad_token_id=self.pad,
            **more,
        )
        if made.shape[1] != width + new:
            raise RuntimeError(f"generate made {made.shape[1] - width} of {new} new tokens")
        # As a trainer would: the tokens come to the host.
        made[:, width:].tolist()


def repeat(run: Callable[[int], None], device: torch.device, job: GenerationJob) -> list[float]:
    """Seconds of up to `repeats` runs; no new one once the patience is spent."""
    gc.collect()
    seconds: list[float] = []
    while len(seconds) < job.repeats and sum(seconds) < job.patience_s:
        began = clock(device)
        run(len(seconds))
        seconds.append(clock(device) - began)
    return seconds


def _tasks(job: GenerationJob) -> TaskSet:
    """Arithmetic with several digits, or GSM8K."""
    if job.gsm8k:
        return build_tasks(GSM8K(path=job.gsm8k), 0, Path())
    return ArithmeticTasks(Arithmetic(level=4), seed=0)


def _prompts(job: GenerationJob, tasks: TaskSet, count: int) -> list[Prompt]:
    """`count` different chat prompts as ids."""
    tokenizer = Tokenizer.from_folder(find_folder(job.model))
    size = tasks.train_size
    found: dict[Prompt, None] = {}
    for index in range(10 * count if size is None else size):
        found[tuple(tokenizer.render(tasks.train(index).messages))] = None
        if len(found) == count:
            return list(found)
    raise RuntimeError(f"{len(found)} different prompts; expected at least {count}")


if __name__ == "__main__":
    main()
