"""Small models that learn to grade: their shapes, their teacher's answers, their training.

A student is a Llama with the teacher's tokenizer, random weights at first. Its vocabulary is what
weighs: 49,152 words of SmolLM2 by 192 numbers are 9.4 of the 11.8 million weights of `12m`, with the
output layer tied to the input.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch

from burnish.config.schema import Optimiser
from burnish.errors import UserError
from burnish.lm.architecture import read_architecture
from burnish.lm.base import Sampling
from burnish.lm.decoder import Decoder, init_weights
from burnish.lm.folder import LoadedModel, load_model, save_model
from burnish.lm.local import LocalLM
from burnish.lm.model_input import ModelInput
from burnish.policy.answer_first import FirstTokenGrade, first_token_grade
from burnish.records import Message, Task
from burnish.rewards.checks.relevance import leading_grade
from burnish.seeds import derive
from burnish.tasks.base import FiniteTasks
from burnish.training.data import Experts
from burnish.training.optimiser import MasterAdamW, learning_rate
from burnish.training.trainable import Trainable
from lab.real.graded_search import INSTRUCTION
from lab.real.supervised import TEACHER, Teaching, fine_tune

PASS_TOKENS = {"cuda": 65_536, "cpu": 4_096}
"""Tokens of one forward pass, padding included."""
CANDIDATES = 8
"""Texts that are looked at for each new pair; the one nearest to the query is taken."""
_WORD = re.compile(r"[a-z]{4,}")


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int


SHAPES = {
    "12m": Shape(hidden=192, layers=6, heads=3, kv_heads=1, intermediate=512),
    "18m": Shape(hidden=256, layers=8, heads=4, kv_heads=2, intermediate=704),
    "trial": Shape(hidden=32, layers=2, heads=2, kv_heads=1, intermediate=64),
}
"""By name; the numbers count weights with SmolLM2's vocabulary. `trial` is for a CPU."""


class Lesson(NamedTuple):
    """How a student is trained."""

    steps: int
    batch: int
    rate: float
    temperature: float
    beta: float


class Learned(NamedTuple):
    """What training ended with."""

    loss: float
    seconds: float


class Taught(NamedTuple):
    """Prompts with what the teacher says of them."""

    tasks: list[Task]
    without_grade: int
    """Teacher's texts that did not begin with a grade; its likeliest one stands for them."""


def new_student(folder: Path, teacher: LoadedModel, shape: Shape, seed: int) -> Path:
    """A folder with a student that knows nothing yet."""
    kept = ("bos_token_id", "eos_token_id", "pad_token_id", "rms_norm_eps", "rope_parameters")
    config = {
        **{name: teacher.config[name] for name in kept if name in teacher.config},
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "dtype": "float32",
        "head_dim": shape.hidden // shape.heads,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": min(teacher.module.max_positions, 2048),
        "mlp_bias": False,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "tie_word_embeddings": True,
        "vocab_size": teacher.module.head_weight.shape[0],
    }
    decoder = Decoder(read_architecture(config))
    init_weights(decoder, derive(seed, "student"))
    return save_model(
        LoadedModel(decoder, teacher.tokenizer, config, teacher.folder, "student"), folder
    )


def open_student(folder: Path, like: LoadedModel) -> Trainable:
    """A student on the teacher's device, in its precision."""
    return Trainable(load_model(folder, dtype=like.dtype, device=like.device))


@torch.inference_mode()
def grades_of(
    loaded: LoadedModel, tasks: Sequence[Task], label_ids: Sequence[int]
) -> FirstTokenGrade:
    """What the first token says to every task: grades (N,), probabilities (N, C), scores (N,)."""
    prompts = [loaded.tokenizer.render(task.messages) for task in tasks]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    logits_NC = torch.empty(len(prompts), len(label_ids), dtype=torch.float32)
    labels_C = torch.tensor(label_ids, device=loaded.device)
    budget = PASS_TOKENS.get(loaded.device.type, PASS_TOKENS["cpu"])
    for places in _passes(order, [len(prompt) for prompt in prompts], budget):
        width = max(len(prompts[i]) for i in places)
        # Behind a prompt anything may stand: no token looks at what comes after it.
        ids_BS = torch.tensor([prompts[i] + [0] * (width - len(prompts[i])) for i in places])
        ids_BS = ids_BS.to(loaded.device)
        positions_BS = torch.arange(width, device=loaded.device).expand(len(places), width)
        hidden_BSD = loaded.module(ModelInput(ids_BS, positions_BS))
        last_B = torch.tensor([len(prompts[i]) - 1 for i in places], device=loaded.device)
        hidden_BD = hidden_BSD[torch.arange(len(places), device=loaded.device), last_B]
        found_BC = loaded.module.logits(hidden_BD).index_select(-1, labels_C)
        logits_NC[places] = found_BC.float().cpu()
    return first_token_grade(logits_NC, range(len(label_ids)))


def _passes(order: Sequence[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Places in passes of at most `budget` tokens, padded to the longest; `order` is by length."""
    passes: list[list[int]] = [[]]
    for place in order:
        if passes[-1] and (len(passes[-1]) + 1) * lengths[place] > budget:
            passes.append([])
        passes[-1].append(place)
    return [places for places in passes if places]


def teach(
    teacher: LocalLM,
    tasks: Sequence[Task],
    labels: Sequence[str],
    label_ids: Sequence[int],
    max_tokens: int,
) -> Taught:
    """The teacher's probabilities of the labels and its text, as fields of the tasks."""
    found = grades_of(teacher.loaded, tasks, label_ids)
    sampling = Sampling(temperature=0.0, max_tokens=max_tokens)
    requests = [teacher.request(task.messages, sampling) for task in tasks]
    texts = [completions[0].text for completions in teacher.sample_batch(requests)]
    taught, without = [], 0
    likeliest = found.grade.tolist()
    for task, text, grade, chances in zip(
        tasks, texts, likeliest, found.probabilities.tolist(), strict=True
    ):
        if leading_grade(text, labels) is None:
            without += 1
            text = labels[grade]
        fields = {**task.fields, "demonstration": text, TEACHER: chances}
        taught.append(msgspec.structs.replace(task, fields=fields))
    return Taught(taught, without)


def new_pairs(tasks: Sequence[Task], count: int, seed: int) -> list[Task]:
    """Queries with texts that were judged for other queries: more prompts for a teacher.

    Of a few texts of the same collection the one that shares most words with the query is taken,
    because texts drawn blindly are hardly ever relevant. Nobody has graded these pairs.
    """
    rng = random.Random(derive(seed, "pairs"))
    split = [_query_and_text(task.prompt) for task in tasks]
    by_source: dict[str, list[str]] = {}
    for task, (_, text) in zip(tasks, split, strict=True):
        by_source.setdefault(str(task.fields["source"]), []).append(text)
    seen = {task.prompt for task in tasks}
    made: list[Task] = []
    for number in range(4 * count):
        if len(made) == count:
            break
        place = rng.randrange(len(tasks))
        query, source = split[place][0], str(tasks[place].fields["source"])
        words = set(_WORD.findall(query.lower()))
        texts = rng.choices(by_source[source], k=CANDIDATES)
        text = max(texts, key=lambda one: len(words & set(_WORD.findall(one.lower()))))
        prompt = f"{INSTRUCTION}\nQuery: {query}\nText: {text}"
        if prompt not in seen:
            seen.add(prompt)
            fields = {"source": source}
            made.append(Task(f"pair-{number}", (Message("user", prompt),), fields))
    return made


def _query_and_text(prompt: str) -> tuple[str, str]:
    """The two sides of a prompt of graded search, each on one line."""
    head, mark, text = prompt.rpartition("\nText: ")
    query = head.removeprefix(f"{INSTRUCTION}\nQuery: ")
    if not mark or query == head:
        raise UserError(
            f"prompt {prompt[:60]!r} is not one of graded search; write the file again with "
            "python -m lab.real.prepare."
        )
    return query, text


def train_student(
    student: Trainable,
    tasks: Sequence[Task],
    lesson: Lesson,
    seed: int,
    label_ids: tuple[int, ...] | None = None,
) -> Learned:
    """Distil the teacher with `label_ids`, else imitate the demonstrations; the last loss."""
    fields = frozenset(tasks[0].fields)
    shown = FiniteTasks("lessons", fields, "", derive(seed, "lessons"), tuple(tasks), ())
    tokenizer = student.loaded.tokenizer
    settings = Optimiser(
        learning_rate=lesson.rate,
        warmup_steps=lesson.steps // 10,
        schedule="linear",
        weight_decay=0.01,
    )
    optimiser = MasterAdamW(student.module.named_parameters(), settings)

    def rate(step: int) -> float:
        return learning_rate(settings, step, lesson.steps)

    began = time.perf_counter()
    teaching = Teaching(label_ids, lesson.temperature, lesson.beta) if label_ids else None
    carried = (TEACHER,) if teaching else ()
    experts = Experts(shown, tokenizer, seed=derive(seed, "experts"), carry=carried)
    *_, last = fine_tune(
        student,
        experts,
        optimiser,
        steps=lesson.steps,
        batch=lesson.batch,
        rate=rate,
        teaching=teaching,
    )
    optimiser.clear()
    return Learned(last.loss, time.perf_counter() - began)
