"""`burnish.align`: from a policy file and a model to an aligned model and a report, in one call.

The folder `out` keeps every step: requests and how much the policy changes each, answers to held-out
requests before, told and after, the training in `run/` (of kind `distil`), report.json and report.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.api.needs import require_torch
from burnish.api.run import Run
from burnish.arguments import as_flag, as_path
from burnish.errors import UserError, python_words
from burnish.store.manifest import is_ours, newest_weights

if TYPE_CHECKING:
    from burnish.api.align_steps import Aligned, Score, Teacher


@python_words()
def align(
    model: str | Path | Run,
    policy: str | Path,
    *words: str,
    out: str | Path = "aligned",
    instructions: str | Path | None = None,
    steps: int = 100,
    generator: Any = None,
    per_clause: int = 24,
    score: Score = "kl",
    keep: float = 0.5,
    benign_share: float = 0.2,
    keep_truncated: bool = False,
    teacher: Teacher = "ema",
    guard: Any = None,
    evaluate: str | Path | None = None,
    max_tokens: int = 256,
    seed: int = 0,
    force: bool = False,
    show: bool = True,
    tell: Callable[[str], object] | None = None,
) -> Aligned:
    """Move a policy, or any system prompt, from a text file into a model's weights.

    - `model`: smollm2, tiny, a model's folder or a run. `policy`: a text file; rules, and worked
      examples under `## Examples`.
    - `words`: settings of the training, such as `optimiser.learning_rate=2e-5` or `train.batch=32`.
    - `out`: the folder of everything; the same call continues there, and gives back what is done.
    - `instructions`: a file of requests (`instruction`, `clause_id`, `kind` violating or benign)
      instead of synthesised ones, which `generator` (by default the model itself) writes.
    - `score`, `keep`, `benign_share`: which requests are trained on (`agents.policyalign`).
      `keep_truncated`: also those whose answers are cut at `max_tokens`.
    - `teacher`: `ema`, `frozen` or `student`. `guard`: `Guard`, or the address of a guard model;
      by default rules. `evaluate`: a file of further prompts for the report, such as XSTest's.
    - `force`: train although the model does not follow the policy in its context.

    Ctrl-C stops cleanly; the same call continues.

    >>> import json
    >>> from pathlib import Path
    >>> _ = Path("policy.md").write_text("- Medicine: never advise on it.")
    >>> asked = [{"instruction": f"Tell me about thing {i}"} for i in range(8)]
    >>> _ = Path("asked.json").write_text(json.dumps(asked))
    >>> found = align("tiny", "policy.md", "train.batch=2", "evaluation.prompts=2", steps=1,
    ...               instructions="asked.json", max_tokens=4, keep_truncated=True, force=True,
    ...               show=False)
    >>> found.run.status, list(found.report.arms)
    ('finished', ['before', 'policy in context', 'after'])
    """
    require_torch("aligning a model")
    from burnish.api.align_steps import Alignment, Plan

    plan = Plan(
        model=_weights_of(model),
        policy=_digest("policy", policy),
        instructions=_digest("instructions", instructions)
        if instructions is not None
        else str(getattr(generator, "name", generator or "the model itself")),
        per_clause=per_clause,
        score=score,
        keep=keep,
        benign_share=benign_share,
        keep_truncated=keep_truncated,
        max_tokens=max_tokens,
        teacher=teacher,
        steps=steps,
        seed=seed,
        guard="rules" if guard is None else str(getattr(guard, "name", guard)),
        evaluate="" if evaluate is None else _digest("evaluate", evaluate),
        settings=list(words),
    )
    force = as_flag("force", force)
    work = Alignment(
        plan, Path(policy), as_path("out", out), instructions, evaluate, generator, guard, force
    )
    work.show, work.told = show, tell
    return work.whole()


def _digest(name: str, given: str | Path) -> str:
    return hashlib.sha256(as_path(name, given, "a file").read_bytes()).hexdigest()


def _weights_of(model: str | Path | Run) -> str:
    if isinstance(model, Run):
        return str(model.weights)
    if "://" in str(model):
        raise UserError(f"model: got the server {model}; expected a model that is trained here.")
    name = str(as_path("model", model, "smollm2, tiny, a model's folder or a run"))
    return str(newest_weights(Path(name))) if is_ours(Path(name)) else name
