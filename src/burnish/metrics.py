"""The catalogue of metrics: name, unit, meaning and where each one is shown.

Braces in a name stand for any word; a stage's metrics have `stage/NAME/` before their name.
`docs/metrics.md` is printed from here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

REWARD = "reward/total"
LENGTH = "length/mean"
CUT = "length/truncated_share"
ENTROPY = "policy/entropy"
CLIPPED = "policy/clipped_share"
RATIO_MAX = "policy/ratio_max"
SURROGATE = "loss/surrogate"
MISMATCH = "mismatch/mean_abs"
KL = "loss/kl"
GROUPS, USEFUL = "groups/total", "groups/useful"
GATE_OPEN, NO_FACTS = "premises/gate_open", "premises/no_facts"
STEP_S, ROLLOUT_S, UPDATE_S = "time/step_s", "time/rollout_s", "time/update_s"


class Metric(NamedTuple):
    """One metric, or one family of them."""

    name: str
    unit: str
    meaning: str
    title: str = ""
    """Of a chart."""
    shown: tuple[str, ...] = ()
    """Where it is shown without being asked for, beside the viewer's list of all curves."""


CATALOGUE = (
    Metric(REWARD, "", "mean total reward of the trained rollouts", "Reward", ("run", "compare", "step", "report")),
    Metric("reward/{reward}/mean", "", "mean of one reward before shaping", shown=("run", "report")),
    Metric("reward/{reward}/std", "", "standard deviation of one reward (ddof 1)"),
    Metric("reward/{reward}/missing", "share", "rollouts without a value of this reward"),
    Metric("reward/corr/{pair}", "", "correlation of two rewards (`a~b`) over answers to the same prompts", shown=("run",)),
    Metric("reward/conflict/{pair}", "share", "pairs of answers to a prompt that two rewards put in opposite order, of those that both tell apart", shown=("run",)),
    Metric("greedy/total", "", "mean total reward of the greedy answers that are baselines"),
    Metric("greedy/missing", "share", "prompts whose greedy answer has no reward"),
    Metric("status/{status}", "share", "rewards that ended with this status", shown=("progress",)),
    Metric("groups", "groups", "groups of the step's batch"),
    Metric("constant_groups", "groups", "groups whose rewards are all the same"),
    Metric("useful_groups", "share", "groups with a signal"),
    Metric("kept", "share", "rollouts that select kept"),
    Metric("advantage_abs", "", "mean size of the advantage of kept rollouts"),
    Metric(USEFUL, "groups", "groups with a signal", "Useful groups", ("run", "compare", "progress", "report")),
    Metric(GROUPS, "groups", "groups that were trained on", shown=("run",)),
    Metric("groups/tried", "groups", "groups that were sampled, refills included"),
    Metric("length/tokens", "tokens", "sampled tokens of all rollouts"),
    Metric(LENGTH, "tokens", "mean length of a rollout", "Mean length in tokens", ("run", "compare", "step", "progress", "report")),
    Metric("length/chosen", "tokens", "mean length of the preferred answers"),
    Metric("length/rejected", "tokens", "mean length of the other answers"),
    Metric("rewards/chosen", "", "mean score of the preferred answers; of DPO the implicit one: beta times the log-ratio to the reference"),
    Metric("rewards/rejected", "", "the same of the other answers"),
    Metric("rewards/margins", "", "mean difference of the two", "Reward margin", ("compare",)),
    Metric("rewards/accuracies", "share", "pairs whose preferred answer is ahead, ties half", "Preference accuracy", ("compare",)),
    Metric("steps/accuracy", "share", "labelled steps on their side of probability 0.5", "Step accuracy", ("compare",)),
    Metric("steps/right", "share", "mean probability of steps that are labelled right"),
    Metric("steps/wrong", "share", "mean probability of steps that are labelled wrong"),
    Metric("logps/chosen", "nats", "mean log-prob of the preferred answers"),
    Metric("logps/rejected", "nats", "mean log-prob of the other answers"),
    Metric("kl/teacher", "nats", "mean divergence to the teacher a token", "Divergence to the teacher", ("compare",)),
    Metric("diffusion/mean_rate", "share", "mean mask rate of a step's rows"),
    Metric("diffusion/masked_share", "share", "tokens that could be masked and were"),
    Metric("diffusion/clipped_share", "share", "rows whose weight was cut; above 0 the loss is biased"),
    Metric("diffusion/weight_max", "", "largest weight of a row, for rates that are not drawn uniformly"),
    Metric("diffusion/forwards", "rows", "rows that went through the model in a step, one for each mask"),
    Metric("diffusion/smoothed_loss", "nats", "loss less the running loss of the rates drawn, plus its mean over rates: swings less with the rates; no update depends on it", "Smoothed loss", ("compare",)),
    Metric("diffusion/bound", "nats", "lower bound of the log-prob of sampled answers, a token"),
    Metric("diffusion/bound_error", "nats", "standard error of that bound over masks, a token"),
    Metric("latents/share", "share", "answers of the step that imagine a picture", shown=("run",)),
    Metric("latents/own", "share", "1 in a step that feeds the model its own latents"),
    Metric("latents/r2", "", "variance of the pictures' vectors that predicted latents explain; below 0: worse than their mean", "Latents R2", ("run", "compare")),
    Metric("latents/fed_ratio", "", "length of predicted latents over that of the pictures' vectors", shown=("run",)),
    Metric("latents/hidden_ratio", "", "length of the hidden states before latents over that of the pictures' vectors: the gap that a head closes", shown=("run",)),
    Metric("latents/input_norm", "", "moving average of the length of the pictures' vectors"),
    Metric("length/max", "tokens", "longest rollout"),
    Metric("text/bits_per_byte", "bits", "bits that the model needs for a byte of the step's text", "Bits per byte", ("run", "compare")),
    Metric("text/unigram_bits_per_byte", "bits", "the same by the frequencies of single tokens in the training text"),
    Metric("text/epoch", "epochs", "how often the training text was read by the end of the step"),
    Metric("audio/seconds", "s", "sound that the step was trained on, padding left out"),
    Metric("audio/epoch", "epochs", "how often the training sounds were read by the end of the step"),
    Metric("length/observed", "tokens", "mean tokens that tools and environments wrote into a rollout"),
    Metric("length/observed_max", "tokens", "the most of them in one rollout"),
    Metric(CUT, "share", "rollouts that the token budget cut", shown=("progress",)),
    Metric("ssp/valid", "share", "proposers whose question passed every filter", "Valid questions", ("run", "compare")),
    Metric("ssp/rejected/{filter}", "share", "proposers whose question this filter rejected"),
    Metric("ssp/success", "share", "attempts that solved a question of this step, mean over questions", "Success rate of new questions", ("run", "compare")),
    Metric("ssp/success_replayed", "share", "the same of questions from the pool"),
    Metric("ssp/proposer_reward", "", "mean reward of the proposers"),
    Metric("ssp/solver_reward", "", "mean score of the solvers"),
    Metric("ssp/questions", "questions", "questions that were solved in the step"),
    Metric("ssp/replayed", "share", "of these, those from the pool"),
    Metric("ssp/above_ceiling", "questions", "drawn from the pool although their success rate is above the ceiling: there was no other"),
    Metric("ssp/pool", "questions", "questions in the pool after the step"),
    Metric("ssp/pool_dropped", "questions", "questions that a reset took out of the pool"),
    Metric("ssp/distinct", "share", "different questions among the valid ones"),
    Metric("ssp/word_overlap", "share", "words that two valid questions share, mean over pairs (Jaccard)"),
    Metric("ssp/searches/{role}", "calls", "mean search queries of a role's rollout", shown=("run",)),
    Metric("ssp/search_errors", "calls", "searches that failed"),
    Metric("ssp/search_defused", "tags", "tags of the game that passages held, made plain text"),
    Metric("ssp/reader_calls", "calls", "readings and judgements of proposed questions"),
    Metric("ssp/reader_failed", "calls", "readings that gave nothing; each counts against its question"),
    Metric("ssp/judge_calls", "calls", "judgements of the solvers' answers"),
    Metric("ssp/cost_usd", "USD", "what a server charged for readings and judgements"),
    Metric("pairs/{figure}", "share", "how a pairwise judge decided in the groups"),
    Metric("pairs/{reward}/{figure}", "share", "the same where there are several pairwise judges"),
    Metric(GATE_OPEN, "share", "answers whose premises nobody could check, because the evidence or a reply about it could not be read; their gate is open (EVPV)", shown=("run",)),
    Metric(NO_FACTS, "share", "answers whose evidence was read and holds no fact", shown=("run",)),
    Metric("premises/{outcome}", "share", "premises of solutions with this outcome: supported, contradicted, unknown, unchecked"),
    Metric(CLIPPED, "share", "tokens whose ratio was clipped", "Clipped share", ("compare", "step", "progress")),
    Metric("policy/clipped_share/{bucket}", "share", "the same for groups of one pass rate"),
    Metric(ENTROPY, "nats", "mean entropy of the next token", "Entropy in nats a token", ("run", "compare", "step", "progress", "report")),
    Metric("policy/marked_share", "share", "tokens that `clip_cov` left out of the loss, or `kl_cov` held"),
    Metric("policy/selected_share", "share", "tokens with a policy loss, where `tokens` leaves some out"),
    Metric(RATIO_MAX, "", "largest ratio of new to old probability"),
    Metric("bounds/{figure}", "", "mean, least and greatest clip bound that binds"),
    Metric("bounds/{figure}/{bucket}", "", "mean clip bound that binds, for groups of one pass rate"),
    Metric(MISMATCH, "nats", "mean distance of trainer's and sampler's log-probs", "Sampler mismatch in nats a token", ("progress", "step")),
    Metric("mismatch/kl", "nats", "KL from sampler to trainer, k3 estimate"),
    Metric("mismatch/max_ratio", "", "largest ratio of trainer's and sampler's probability"),
    Metric("sampler/lag", "updates", "mean lag of the weights that sampled behind the trainer's; of a remote sampler"),
    Metric("sampler/lag_max", "updates", "the largest such lag"),
    Metric("correction/weight", "", "mean importance weight of the trained tokens"),
    Metric("correction/cut_share", "share", "trained tokens whose importance weight was truncated or masked"),
    Metric("loss/{term}", "", "a term of the loss, averaged over the step's updates", shown=("progress",)),
    Metric("loss/entropy/coefficient", "", "weight of the adaptive entropy bonus; 0 while entropy is above its target"),
    Metric("loss/sft/coefficient", "", "weight of the imitation of experts"),
    Metric("loss/sft/held_out_nll", "nats", "negative log-likelihood of demonstrations never imitated"),
    Metric("critic/explained_variance", "share", "variance of the returns that the critic foretold: 1 all, 0 none; left out where returns are equal", "Explained variance of the critic", ("run", "report")),
    Metric("critic/value", "", "mean value that the critic gave a trained token before the update"),
    Metric("critic/return", "", "mean return of a trained token: what the critic should have said"),
    Metric("critic/gradient_norm", "", "norm of a separate critic's gradients before clipping, mean over the step's updates"),
    Metric("critic/learning_rate", "", "rate of a separate critic's optimiser in the step"),
    Metric("critic/kl", "nats", "mean log-prob of a trained token less the starting model's, where the reward loses it"),
    Metric("terms/{term}/{figure}", "", "a figure of one of the `terms` of a loss on pairs (`reward_model`, `dpo`)"),
    Metric("weights/{reward}/{figure}", "", "a reward's weight and the factors that made it"),
    Metric("reference/refrozen", "", "1 where the unit of the rewards was measured again"),
    Metric("reference/{reward}/saturated", "share", "values at the clip of the frozen reference"),
    Metric("reference/{reward}/refrozen", "", "1 where this reward's unit was measured again"),
    Metric("contrast/{figure}", "", "the contrastive head: loss, anchors, similarities, gradient norm"),
    Metric("gradient/policy_norm", "", "gradient norm of the policy loss alone"),
    Metric("gradient/sft_norm", "", "gradient norm of the imitation alone"),
    Metric("gradient/cosine", "", "cosine of these two gradients"),
    Metric("layers/embedding_norm", "", "mean length of a token's vector before the first layer; of the steps that `layer_metrics_every` names"),
    Metric("layers/x_norm/{layer}", "", "mean length of a token's vector in the normalised stream X behind a layer", "X norm", ("run",)),
    Metric("layers/y_norm/{layer}", "", "the same in the stream that is never normalised, the only one of most models", "Y norm", ("run",)),
    Metric("layers/update_ratio_x/{layer}", "", "mean size of what a layer adds, over that of X before it", "Update ratio to X", ("run",)),
    Metric("layers/update_ratio_y/{layer}", "", "mean size of what a layer adds, over that of Y before it", "Update ratio to Y", ("run",)),
    Metric("layers/gradient_norm/{layer}", "", "gradient norm of a layer's weights, before clipping", "Gradient norm of a layer", ("run",)),
    Metric("optimiser/gradient_norm", "", "mean gradient norm of the step's updates, before clipping"),
    Metric("optimiser/learning_rate", "", "learning rate"),
    Metric("optimiser/updates", "updates", "optimiser updates of the step"),
    Metric(ROLLOUT_S, "s", "sampling", shown=("report",)),
    Metric("time/score_s", "s", "rewards"),
    Metric(UPDATE_S, "s", "loss, gradients and optimiser", shown=("report",)),
    Metric(STEP_S, "s", "the whole step", "Seconds a step", ("compare", "step", "report")),
)  # fmt: skip


@lru_cache(maxsize=1024)
def known(name: str) -> Metric | None:
    """The entry of a stored metric, also of a stage's; None where the catalogue has none."""
    name = re.sub(r"^stage/[^/]+/", "", name)
    return next((metric for metric in CATALOGUE if _pattern(metric.name).fullmatch(name)), None)


@lru_cache
def _pattern(name: str) -> re.Pattern[str]:
    """A name as a pattern; a reward's name may hold slashes, other words do not."""
    words = re.split(r"(\{\w+\})", name)
    kinds = {"{reward}": r".+", "{pair}": r".+"}
    return re.compile(
        "".join(kinds.get(w, r"[^/]+") if w[:1] == "{" else re.escape(w) for w in words)
    )


def title_of(name: str) -> str:
    """The title of a metric's chart: its own, or its name."""
    found = known(name)
    return found.title if found is not None and found.title else name


def reward_parts(names: Iterable[str]) -> dict[str, str]:
    """Rewards by name, each with the metric of its mean."""
    found = {name: name.removeprefix("reward/").removesuffix("/mean") for name in names}
    return {part: n for n, part in found.items() if n == f"reward/{part}/mean"}


def agreeing(names: Iterable[str]) -> list[str]:
    """Rewards that have a correlation or a conflict with another one, in their order."""
    known_names = set(names)
    parts = list(reward_parts(names))
    return [
        part
        for part in parts
        if any(
            f"reward/{kind}/{pair}" in known_names
            for other in parts
            for pair in (f"{part}~{other}", f"{other}~{part}")
            for kind in ("corr", "conflict")
        )
    ]


def main_reward(names: Iterable[str]) -> str | None:
    """The metric that stands for the reward: the total, or the only reward's mean."""
    known_names = list(names)
    if REWARD in known_names:
        return REWARD
    parts = list(reward_parts(known_names).values())
    return parts[0] if len(parts) == 1 else None


def table() -> str:
    """The catalogue as a Markdown table."""
    rows = [
        f"| `{m.name}` | {m.unit or '-'} | {m.meaning} | {', '.join(m.shown) or '-'} |"
        for m in CATALOGUE
    ]
    return "\n".join(["| metric | unit | meaning | shown in |", "|---|---|---|---|", *rows]) + "\n"
