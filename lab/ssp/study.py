"""Search self-play on SmolLM2: does the game make a better searcher than solving alone?

    python -m lab.run ssp --jobs 4 --only ssp_world
    python -m lab.run ssp --cpu                        # a trial with a random tiny model

All arms start from the same 300 steps on templated transcripts of both roles. The measure asks the
trained model greedily on held-out two-hop questions, whose answers no proposer was given, and lets it
propose to held-out answers: what share of its questions is valid, and unique, by the world's oracle?
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import anyio

from burnish.agents.ssp.game import SearchSelfPlay
from burnish.agents.ssp.rules import extract_answer
from burnish.agents.ssp.world import world_of
from burnish.bench.evaluation import Evaluated
from burnish.lm.base import Sampling
from burnish.rollouts import Limits, roll_out
from burnish.rollouts.env import FunctionRollout
from lab.measure import answer, held_out, model_of, part
from lab.plan import Arm, Column, Study, Subject

TASK: dict[str, Any] = {"kind": "function", "path": "burnish.agents.ssp.world:make"}
REWARDS: list[dict[str, Any]] = [{"kind": "env", "name": "game"}]
MAX_TOKENS, TURN_TOKENS, TURNS = 192, 56, 4  # the longest templated reply has 50


def forms(items: Sequence[Evaluated]) -> dict[str, float]:
    """How many attempts keep to the form: a search, and an answer in tags."""
    said = [
        "".join(m.text for m in item.trajectory.messages if m.role == "assistant") for item in items
    ]
    searched = [item.trajectory.info.get("search", {}).get("calls", 0) > 0 for item in items]
    return {
        "answered": statistics.fmean(extract_answer(text) is not None for text in said),
        "searched": statistics.fmean(searched),
    }


def by_oracle(subject: Subject) -> dict[str, float]:
    """Held-out accuracy, and what the oracle says of the questions that the model proposes."""
    settings = FunctionRollout(
        path="burnish.agents.ssp.game:SearchSelfPlay",
        samples=1,
        max_tokens=MAX_TOKENS,
        turn_tokens=TURN_TOKENS,
        limits=Limits(turns=TURNS),
    )
    game = SearchSelfPlay(settings, reader="none", strategy="dummy")
    tasks = held_out(TASK, subject.prompts)
    greedy = Sampling(temperature=0.0, max_tokens=MAX_TOKENS)
    items = answer(subject.model, subject.device, tasks, REWARDS, greedy, rollout=game.evaluation())
    found = {"accuracy": statistics.fmean(part(items, "game")), **forms(items)}
    deeper = held_out({**TASK, "options": {"question_hops": 3}}, subject.prompts)
    items = answer(
        subject.model, subject.device, deeper, REWARDS, greedy, rollout=game.evaluation()
    )
    found["three_hops"] = statistics.fmean(part(items, "game"))
    lm, slots = model_of(subject.model, subject.device), list(enumerate(tasks))
    sampled = settings.sampling
    played = anyio.run(lambda: roll_out(slots, lm, sampled, game, 0))
    proposed = [t.info["ssp"] for group in played for t in group if t.role == "proposer"]
    asked = [facts for facts in proposed if facts.get("valid")]
    judged = [world_of().judge(facts["question"], facts["answer"]) for facts in asked]
    total = max(1, len(proposed))
    found["follows_rules"] = len(asked) / total
    found["oracle_valid"] = sum(one.is_valid for one in judged) / total
    found["oracle_unique"] = sum(one.is_unique for one in judged) / total
    found["depth"] = statistics.fmean([one.depth for one in judged if one.is_valid] or [0.0])
    return found


SIZES: dict[str, Any] = {
    "steps": 40,
    "stages.0.steps": 300,
    "rollout.prompts": 16,
    "rollout.max_tokens": MAX_TOKENS,
    "rollout.turn_tokens": TURN_TOKENS,
    "rollout.limits": {"turns": TURNS},
    "evaluation.prompts": 100,
}
COLUMNS = (
    Column("accuracy", "held-out accuracy, two hops"),
    Column("three_hops", "three hops, which no example has"),
    Column("answered", "attempts that answer"),
    Column("searched", "attempts that search"),
    Column("follows_rules", "questions by the rules"),
    Column("oracle_valid", "valid by the oracle"),
    Column("oracle_unique", "unique by the oracle"),
    Column("depth", "mean depth of valid questions", 2),
)
PANELS = ("ssp/valid", "ssp/success", "reward/game/mean", "ssp/searches/solver")

STUDIES = (
    Study(
        name="ssp_world",
        about="SmolLM2 on an invented world of 400 entities with a search tool: 16 answers a step, "
        "five attempts at each question. Valid and unique are exact, by the world's oracle.",
        overrides=SIZES,
        arms=(
            Arm("warm start alone", "ssp", {"optimiser.learning_rate": 0.0, "steps": 6}),
            Arm(
                "solver only, proposer earns nothing", "ssp", {"rollout.options.train": ["solver"]}
            ),
            Arm("search self-play", "ssp"),
            Arm("search self-play, no check", "ssp", {"rollout.options.reader": "none"}),
        ),
        columns=COLUMNS,
        measure=by_oracle,
        headline="accuracy",
        panels=PANELS,
        run_s=150.0,
    ),
    Study(
        name="ssp_choices",
        about="The same game: a pool that is never reset, and a proposer that is compared with the "
        "others of its step.",
        overrides=SIZES,
        arms=(
            Arm("search self-play", "ssp"),
            Arm("pool never reset", "ssp", {"rollout.options.strategy": "full"}),
            Arm(
                "proposer against the batch's mean",
                "ssp",
                {"policy.advantage.singletons": "batch_mean"},
            ),
        ),
        columns=COLUMNS,
        measure=by_oracle,
        headline="accuracy",
        panels=PANELS,
        run_s=150.0,
    ),
)
