"""Benchmarks by name, read from the files that their authors publish. No data is shipped.

items = load("rmbench", Path("data/RM-Bench"))
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from burnish.bench.items import Item
from burnish.bench.loaders.choices import (
    load_alpaca_pairs,
    load_judgebench,
    load_lamp,
    load_llmbar,
    load_pandalm,
    load_ppe,
    load_rewardbench2,
    load_rmbench,
)
from burnish.bench.loaders.labelled import (
    load_bigbench_mistake,
    load_faithbench,
    load_halueval,
    load_healthbench,
    load_healthbench_marks as load_healthbench_marks,
    load_ifeval,
    load_mr_gsm8k,
    load_processbench,
    load_rgb,
    load_wice,
    rubric_score as rubric_score,
)
from burnish.bench.loaders.pictures import (
    load_mathvision,
    load_mm_rlhf,
    load_multimodal_rewardbench,
    load_vl_rewardbench,
)
from burnish.bench.loaders.plans import load_atp
from burnish.errors import UserError, did_you_mean

logger = logging.getLogger(__name__)


class Benchmark(NamedTuple):
    name: str
    title: str
    kind: str
    """choice: which response is best; rubric or instructions: how good is one response; steps:
    which step of a solution is the first wrong one; faithful: does one response keep to its
    documents; plans: does one response call tools where a picture is needed."""
    about: str
    load: Callable[[Path], list[Item]]


BENCHMARKS = {
    one.name: one
    for one in (
        Benchmark("judgebench", "JudgeBench", "choice", "right and wrong answers", load_judgebench),
        Benchmark("rmbench", "RM-Bench", "choice", "right and wrong in 3 styles", load_rmbench),
        Benchmark("llmbar", "LLMBar", "choice", "instructions followed or not", load_llmbar),
        Benchmark("pandalm", "PandaLM", "choice", "three people's preferences", load_pandalm),
        Benchmark("alpaca_pairs", "AlpacaEval", "choice", "GPT-4's preferences", load_alpaca_pairs),
        Benchmark("lamp", "LAMP", "choice", "paragraphs, edited or not", load_lamp),
        Benchmark("rewardbench2", "RewardBench 2", "choice", "best of four", load_rewardbench2),
        Benchmark("ppe", "PPE", "choice", "human preference, Best-of-K pairs", load_ppe),
        Benchmark(
            "vl_rewardbench",
            "VL-RewardBench",
            "choice",
            "answers to questions on pictures",
            load_vl_rewardbench,
        ),
        Benchmark(
            "multimodal_rewardbench",
            "Multimodal RewardBench",
            "choice",
            "six areas, with pictures",
            load_multimodal_rewardbench,
        ),
        Benchmark(
            "mm_rlhf", "MM-RLHF-RewardBench", "choice", "ranked answers on pictures", load_mm_rlhf
        ),
        Benchmark(
            "mathvision",
            "MATH-Vision",
            "choice",
            "right and wrong solutions on pictures",
            load_mathvision,
        ),
        Benchmark("healthbench", "HealthBench", "rubric", "physicians' rubrics", load_healthbench),
        Benchmark(
            "bigbench_mistake",
            "BIG-Bench Mistake",
            "steps",
            "five tasks, PaLM 2",
            load_bigbench_mistake,
        ),
        Benchmark("mr_gsm8k", "MR-GSM8K", "steps", "wrong solutions of GSM8K", load_mr_gsm8k),
        Benchmark("processbench", "ProcessBench", "steps", "mathematics", load_processbench),
        Benchmark("faithbench", "FaithBench", "faithful", "summaries of news", load_faithbench),
        Benchmark("wice", "WiCE", "faithful", "claims and the pages they cite", load_wice),
        Benchmark("halueval", "HaluEval", "faithful", "ChatGPT, no documents", load_halueval),
        Benchmark("rgb", "RGB", "faithful", "right and wrong answers to snippets", load_rgb),
        Benchmark("atp", "ATP-Bench", "plans", "tool calls in place of pictures", load_atp),
        Benchmark("ifeval", "IFEval", "instructions", "checkable instructions", load_ifeval),
    )
}


def benchmark(name: str) -> Benchmark:
    if name not in BENCHMARKS:
        known = f" Expected one of {', '.join(BENCHMARKS)}."
        raise UserError(f"no benchmark '{name}'.{did_you_mean(name, BENCHMARKS) or known}")
    return BENCHMARKS[name]


def load(name: str, path: Path) -> list[Item]:
    """All items of a benchmark's file or folder; ids are unique.

    Of a folder, files that are something else are left out, and so is what stands in two of its
    files (one for each subset and one with all); a warning names them.
    """
    items = benchmark(name).load(path)
    seen: dict[str, Item] = {}
    for item in items:
        if item.id in seen and not (path.is_dir() and seen[item.id] == item):
            raise UserError(f"{path}: two items have the id '{item.id}'; each needs its own.")
        seen[item.id] = item
    if twice := len(items) - len(seen):
        logger.warning("left out: %d items that stand twice in the files of %s", twice, path)
    return list(seen.values())
