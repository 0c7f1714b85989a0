"""Child of speed.py: new tokens a second, burnish's engine beside transformers' generate.

    python benchmarks/_speed_generation.py JOB OUT

Both sample at temperature 1 from the same weights, in the same dtype, after the same prompts, and
every row runs to its budget. Rows of the result are written as they come.
"""

from __future__ import annotations

import copy
import dataclasses
import gc
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from _speed_floor import Weights, clock, generation_floor
from _speed_records import GenerationJob, Row, Tail, read_job, say

from burnish.lm.base import Sampling
from burnish.lm.folder import LoadedModel, find_folder, load_model
from burnish.lm.local import LocalLM
from burnish.lm.tokenizer import Tokenizer
from burnish.seeds import derive
from burnish.tasks.arithmetic import Arithmetic, ArithmeticTasks
from burnish.tasks.config import build as build_tasks
from burnish.tasks.forms import GSM8K

Prompt = tuple[int, ...]


class Work(NamedTuple):
    """A batch: the prompt and the budget of each row."""

    layout: str
    prompts: list[Prompt]
    budgets: list[int]

    @property
    def distinct(self) -> list[int]:
        """Lengths of the prompts, a repeated one once."""
        return [len(prompt) for prompt in dict.fromkeys(self.prompts)]


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
        tail = tail_work(plan.tail, _prompts(job, plan.tail.rows // plan.samples), plan.samples)
        full = Work("full", tail.prompts, [plan.tail.longest] * plan.tail.rows)
        yield engine.measure(tail)
        yield engine.measure(full)
        yield peer.measure(full)
        return
    prompts = _prompts(job, max(plan.batches))
    for batch in plan.batches:
        for new in plan.new_tokens:
            firsts = prompts[: batch // plan.samples]
            grouped = [prompt for prompt in firsts for _ in range(plan.samples)]
            yield engine.measure(Work("groups", grouped, [new] * batch))
            distinct = Work("distinct", prompts[:batch], [new] * batch)
            yield engine.measure(distinct)
            yield peer.measure(distinct)


def tail_work(tail: Tail, prompts: Sequence[Prompt], samples: int) -> Work:
    """Budgets from a Pareto law, the same everywhere: half below twice the shortest, one longest."""
    rng = random.Random(derive("speed", "tail"))
    drawn = [int(tail.shortest * rng.paretovariate(1.1)) for _ in range(tail.rows - 1)]
    budgets = [tail.longest, *(min(budget, tail.longest) for budget in drawn)]
    rng.shuffle(budgets)
    rows = [prompt for prompt in prompts for _ in range(samples)]
    return Work("tail", rows, budgets)


class Engine:
    """burnish's engine; its time covers token ids, log-probs and texts."""

    def __init__(self, job: GenerationJob, dtype: str) -> None:
        self.job = job
        self.dtype = dtype
        loaded = endless(load_model(job.model, dtype=dtype, device=job.device))
        self.lm = LocalLM(loaded)
        self.weights = Weights.of(loaded)
        self.device = loaded.device

    def measure(self, work: Work) -> Row:
        batches = [self._requests(work, seed) for seed in range(1 + self.job.repeats)]
        began = clock(self.device)
        self._run(batches[0], work)
        warm_up_s = clock(self.device) - began
        seconds = repeat(lambda i: self._run(batches[1 + i], work), self.device, self.job)
        contexts = [(len(p), b) for p, b in zip(work.prompts, work.budgets, strict=True)]
        rates = self.job.rates[self.dtype]
        return Row(
            program="burnish",
            layout=work.layout,
            dtype=self.dtype,
            batch=len(work.prompts),
            new_tokens=max(work.budgets),
            measured_tokens=max(work.budgets),
            tokens=sum(work.budgets),
            prompt_tokens=sum(map(len, work.prompts)),
            warm_up_s=warm_up_s,
            seconds=seconds,
            floor_s=generation_floor(self.weights, rates, work.distinct, contexts),
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

    def _run(self, requests: list[Any], work: Work) -> None:
        made = self.lm.sample_batch(requests)
        got = [len(completion.token_ids) for group in made for completion in group]
        if got != work.budgets:
            short = sum(g < b for g, b in zip(got, work.budgets, strict=True))
            raise RuntimeError(f"{short} of {len(got)} rows ended before their budget")


class Peer:
    """transformers' generate, prompts padded on the left."""

    def __init__(self, job: GenerationJob, dtype: str) -> None:
        from transformers import AutoModelForCausalLM

        self.job = job
        self.dtype = dtype
        folder = find_folder(job.model)
        self.pad = Tokenizer.from_folder(folder).pad_id
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        self.device = torch.device(job.device)
        self.model = model.to(self.device).eval()

    def measure(self, work: Work) -> Row:
        new = max(work.budgets)
        began = clock(self.device)
        self._run(work.prompts, 2)
        warm_up_s = clock(self.device) - began
        measured = min(new, self._fitting(work.prompts))
        seconds = repeat(lambda _: self._run(work.prompts, measured), self.device, self.job)
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

    def _fitting(self, prompts: Sequence[Prompt]) -> int:
        """How many new tokens one run makes within the patience, from two short runs."""
        marks = [clock(self.device)]
        for new in (2, 6):
            self._run(prompts, new)
            marks.append(clock(self.device))
        first, second = marks[1] - marks[0], marks[2] - marks[1]
        a_token = max((second - first) / 4, 1e-6)
        return max(8, int((self.job.patience_s - first) / a_token))

    @torch.inference_mode()
    def _run(self, prompts: Sequence[Prompt], new: int) -> None:
        width = max(map(len, prompts))
        ids = [[self.pad] * (width - len(prompt)) + list(prompt) for prompt in prompts]
        mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        more = {"cache_implementation": self.job.cache} if self.job.cache else {}
        made = self.model.generate(
            input_ids=torch.tensor(ids, device=self.device),
            attention_mask=torch.tensor(mask, device=self.device),
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


def endless(loaded: LoadedModel) -> LoadedModel:
    """The model with a tokenizer that knows no end token, so that every row runs to its budget."""
    tokenizer = copy.copy(loaded.tokenizer)
    tokenizer.eos_ids = ()
    return dataclasses.replace(loaded, tokenizer=tokenizer)


def _prompts(job: GenerationJob, count: int) -> list[Prompt]:
    """`count` different chat prompts as ids: arithmetic with several digits, or GSM8K."""
    tokenizer = Tokenizer.from_folder(find_folder(job.model))
    tasks = (
        build_tasks(GSM8K(path=job.gsm8k), 0, Path())
        if job.gsm8k
        else ArithmeticTasks(Arithmetic(level=4), seed=0)
    )
    size = tasks.train_size
    found: dict[Prompt, None] = {}
    for index in range(10 * count if size is None else size):
        found[tuple(tokenizer.render(tasks.train(index).messages))] = None
        if len(found) == count:
            return list(found)
    raise RuntimeError(f"{len(found)} different prompts; expected at least {count}")


if __name__ == "__main__":
    main()
