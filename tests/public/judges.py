"""One valid call of every public function of judges, and what it lets pass."""

from types import SimpleNamespace

from burnish.rewards import judges
from burnish.rewards.judges import (
    atp_bench,
    evpv,
    genrm,
    march,
    openrs,
    proxy_grm,
    rubric,
    skill_rm,
)
from burnish.rewards.judges.instruction import Disagreement, Labelled
from burnish.rewards.judges.rubric.items import Point
from burnish.rewards.judges.skill_rm.readout import Item as PairItem, Tier
from public.common import NEEDED, OPTIONAL, PARSED, Case

CRITERIA = [{"type": "core", "winner": "A", "score": 2}, {"winner": "B", "score": -1}]
TIES = [
    {"id": "ref:1", "num_correct": 1, "ratings": [9, 3]},
    {"id": "tied:1", "num_correct": 2, "ratings": [9, 8, 3]},
]
ITEMS = [
    {"tier": "essential", "level": 2, "tag": "safety"},
    {"tier": "important", "level": 1, "tag": "safety"},
]
LABELLED = [Labelled("a", 1), Labelled("b", 2)]
PLANNED = '<tool name="search">{"query": "a"}</tool>'
PLANS = [{"calls_correct": [True, False], "missed": 1}, {"calls_correct": [], "missed": 0}]
BLOCKS = "<rubric>Facts 100%</rubric><eval>both</eval><answer>1</answer>"
CASES = [
    # Judges: readouts and benchmarks
    Case(
        judges.parse_pairwise_verdict,
        {"texts": ["[[A]]", "B>A"], "finish_reason": "stop"},
        {"texts": f"{PARSED} short", "finish_reason": "none empty word number"},
    ),
    Case(
        judges.parse_pairwise_verdict_truncated,
        {"text": "[[A]]"},
        {"text": "none empty word", "finish_reason": "none empty word number"},
    ),
    Case(judges.parse_rating, {"texts": ["8/10", "7."]}, {"texts": f"{PARSED} short"}, signed="lo"),
    Case(
        judges.ranking_score,
        {"winner_vs_chosen": ["A", "B"], "chosen": None},
        {"winner_vs_chosen": "empty item_none item_number", "chosen": "none word"},
    ),
    Case(
        judges.score_from_counts,
        {"pairs": (3, 5), "total": None},
        {"pairs": "none nan inf item_none empty", "total": "none word"},
        signed="pairs",
    ),
    Case(
        judges.clamp,
        {"values": [0.2, 1.5]},
        {"values": "none nan inf item_none empty short word"},
        signed="values default",
    ),
    Case(
        judges.reference_match,
        {"cases": ("4", ["it is 4", "it is 14"]), "responses": None},
        {"cases": "empty"},
    ),
    Case(
        judges.stable_int,
        {"parts": ["a", 1]},
        {"parts": "none empty short word item_none item_number"},
    ),
    Case(
        judges.candidate_order,
        {"seed": 0, "dataset": "d", "sample_id": "s", "n": 4},
        {
            "seed": "none nan inf word",
            "dataset": "none empty word number",
            "sample_id": "none empty word number",
        },
        signed="seed",
    ),
    Case(
        judges.order_swap_aggregate,
        {"gold": ["A", "B"], "predictions": [("A", "B"), ("B", None)]},
        {"predictions": "item_none"},
    ),
    Case(
        judges.rmbench_counts,
        {"pairs": ["aa", "ab"], "winner_is_chosen_when": "A", "predictions": ["A", "B"]},
        {"predictions": "item_none item_number"},
    ),
    Case(judges.ties_score, {"rows": TIES}, {"rows": "empty short"}),
    Case(
        judges.sanitize_metadata,
        {"metadata": {"topic": "law", "is_chosen": True}},
        {"metadata": "none empty word number"},
    ),
    Case(
        judges.accuracy_of,
        {"records": LABELLED, "predicted": [1, None]},
        {"predicted": "item_none"},
        signed="predicted",
    ),
    Case(
        judges.by_rule,
        {"disagreements": [Disagreement(LABELLED[0], 2)]},
        {"disagreements": "empty short"},
    ),
    Case(
        judges.forecast,
        {
            "questions": 10,
            "prompt_tokens": 100.0,
            "completion_tokens": 50.0,
            "prices": SimpleNamespace(prompt_usd=1.0, completion_usd=2.0),
            "concurrency": 4,
            "call_s": 1.0,
        },
    ),
    # Judges: OpenRS
    *(
        Case(
            function,
            {"criteria": CRITERIA, "min_score": 0.0, "weights": {"core": 5.0}},
            {"criteria": "none empty word short number item_none", "weights": "none empty"},
        )
        for function in (openrs.aggregate_criteria, openrs.explain_criteria)
    ),
    *(
        Case(
            function,
            {"forward_backward": (1.4, -0.5), "min_score": 0.0, "rule": rule},
            {"forward_backward": "nan inf item_none"},
            signed="forward_backward",
        )
        for function, rule in (
            (openrs.two_order_verdict, "reference"),
            (openrs.two_order_votes, "votes"),
        )
    ),
    Case(openrs.two_order_strict, {"winners": ("A", "B")}, {"winners": "item_none item_number"}),
    Case(
        openrs.one_vs_n,
        {"results": [1, 0]},
        {"results": "nan inf item_none short"},
        signed="results",
    ),
    Case(
        openrs.verifiable_verdict,
        {"scores_chosen_rejected": (1, 0)},
        {"scores_chosen_rejected": "nan inf item_none"},
        signed="scores_chosen_rejected",
    ),
    Case(openrs.extract_json, {"texts": ['{"a": 1}', "no"]}, {"texts": f"{PARSED} short"}),
    Case(
        openrs.asymmetric_advantages,
        {"rewards": [0.6, 0.4], "parent": 0.5},
        {"rewards": "empty short"},
        signed="rewards parent",
    ),
    # Judges: rubrics
    *(
        Case(
            function,
            {
                "items": ITEMS,
                "tier_weights": {"essential": 2.0},
                "truncation": 0.5,
                "saturation": 1.0,
            },
            {
                "items": "empty short",
                "tier_weights": "none empty",
                "truncation": OPTIONAL,
                "saturation": "none inf",
            },
            shares="truncation",
        )
        for function in (rubric.score, rubric.explain)
    ),
    Case(
        rubric.dialogue_score,
        {"turns": [0.5, 0.7]},
        {"turns": "empty short item_none"},
        signed="turns",
    ),
    Case(rubric.equal, {"pairs": (0.5, 0.6)}, {"pairs": "empty"}, signed="pairs"),
    Case(
        rubric.merge_equal,
        {"scores": [0.5, 0.53, None]},
        {"scores": "empty short item_none"},
        signed="scores",
    ),
    Case(
        rubric.scale_reward,
        {"scores": [0.5, 0.9], "mean_of_references": 0.6},
        {"scores": "empty short"},
        signed="scores mean_of_references",
    ),
    Case(
        rubric.concordance,
        {"human_sign_and_scores": [(1, 0.8, 0.5), (-1, 0.7, 0.6)]},
        {"human_sign_and_scores": "empty short"},
    ),
    Case(
        rubric.band, {"deviations": [1.0, 9.0]}, {"deviations": "empty short"}, signed="deviations"
    ),
    Case(
        rubric.bootstrap_interval,
        {"scores": [0.5, 0.7, None], "draws": 20},
        {"scores": "empty short item_none"},
        signed="scores",
        shares="share",
    ),
    Case(
        rubric.family_deltas,
        {"rows": [("a", "a", 1.0), ("a", "b", 0.5), ("b", "a", 0.5), ("b", "b", 1.0)]},
        {"rows": "empty short"},
    ),
    Case(
        rubric.merge_points,
        {"found": [[Point("1", "water boils", "important")]]},
        {"found": "empty short"},
    ),
    Case(rubric.audit_points, {"findings": {"right": True}}, {"findings": "empty"}),
    # Judges: skills and GenRM
    Case(
        skill_rm.capped_score,
        {"satisfied": 3, "total": 4, "flags": ["wrong_language"]},
        {"satisfied": "none nan inf word", "total": "none nan inf word", "flags": "empty short"},
        signed="satisfied total",
    ),
    Case(
        skill_rm.decide_pair,
        {"items": [PairItem(Tier.HARD, "a", 1, "saw")]},
        {"items": "empty short"},
    ),
    Case(genrm.read_principles, {"text": "Principle 1 (60%): clear"}, {"text": "empty word"}),
    # Judges: Proxy-GRM
    Case(proxy_grm.format_ok, {"texts": [BLOCKS, "no"]}, {"texts": f"{PARSED} short"}),
    Case(
        proxy_grm.accuracy_reward, {"cases": [(BLOCKS, 1), (BLOCKS, 2)]}, {"cases": "empty short"}
    ),
    Case(proxy_grm.proxy_reward, {"cases": [(BLOCKS, 1)]}, {"cases": "empty short"}),
    Case(proxy_grm.proxy_choice, {"text": BLOCKS}, {"text": "empty word"}),
    Case(proxy_grm.extract_rubric, {"text": BLOCKS}, {"text": "none empty word"}),
    *(
        Case(function, {"rubric": "Facts 100%"}, {"rubric": "empty word"})
        for function in (proxy_grm.leaks, proxy_grm.without_leaks, proxy_grm.weights_ok)
    ),
    Case(
        proxy_grm.compose,
        {"weights": [1.0, 1.0, 0.5], "acc": 1.0, "prox": -1.0},
        {"acc": NEEDED},
        signed="weights acc prox",
        shares="acc",
    ),
    Case(proxy_grm.compose_variants, {"variant_ids": [0, 3]}, {"variant_ids": "empty short"}),
    Case(
        proxy_grm.variant_score,
        {"variant": 3, "acc": 1.0, "prox": -1.0},
        {"prox": OPTIONAL},
        signed="acc prox",
        shares="acc",
    ),
    *(
        Case(
            function,
            {"rows": [{"id": "a", "rewards": [1.0, 0.0], "reverse": False}]},
            {"rows": "empty short"},
        )
        for function in (
            proxy_grm.vl_rewardbench,
            proxy_grm.mm_rlhf,
            proxy_grm.mmrb_group,
            proxy_grm.multimodal_rewardbench,
        )
    ),
    # Claims that are checked blind
    Case(march.parse_claims, {"text": "- Question: a? [Answer: 1]"}, {"text": "empty word"}),
    Case(march.parse_checks, {"text": "1. a [Answer: 1]", "count": 2}, {"text": "empty word"}),
    Case(march.split_thinking, {"text": "<think>a</think>b"}, {"text": "empty word"}),
    Case(march.split_docs_and_query, {"prompt": "Passages:\na\nQuestion: b"}),
    Case(march.is_refusal, {"answer": "Cannot answer"}, {"answer": "empty word"}),
    Case(
        march.is_own_claim,
        {"claim": ("Where?", "Tampa"), "answer": "Tampa, Florida"},
        {"answer": "empty word"},
    ),
    Case(
        march.answers_match,
        {"a": "3", "b": "3"},
        {"a": "empty word", "b": "empty word"},
        shares="threshold",
    ),
    Case(
        march.fact_reward,
        {
            "claims": [("a?", "3"), ("b?", "4")],
            "checks": [{1: "3"}, {1: "3"}],
            "mode": "err",
            "short_penalty": -0.5,
        },
        {"claims": "empty short", "checks": "short"},
        signed="right wrong short_penalty",
    ),
    Case(march.checker_rewards, {"agreement": [[1, -1], [1, 1]]}, {"agreement": "short empty"}),
    # Premises of steps, checked against evidence
    Case(
        evpv.parse_step_verdict,
        {"texts": ["1", "-1"]},
        {"texts": "none word empty short item_none"},
    ),
    Case(
        evpv.parse_step_verdict_strict,
        {"texts": ["1", "-1"]},
        {"texts": "none word empty short item_none"},
    ),
    Case(
        evpv.build_checklist,
        {"steps": [("a", "AB = 10"), ("b", None)]},
        {"steps": "empty short item_none"},
    ),
    Case(
        evpv.reliability_from_audit,
        {"severities": ["high", "low"]},
        {"severities": "none empty short"},
    ),
    Case(
        evpv.gate,
        {"raw": [1.0, 1.0, -1.0], "visual_steps": [0, 2], "reliability": 0.5},
        {"raw": "empty short item_none", "visual_steps": "empty short", "reliability": OPTIONAL},
        signed="raw visual_steps",
        shares="reliability",
    ),
    *(
        Case(
            function,
            {"step_scores": [1.0, -1.0]},
            {"step_scores": "empty short"},
            signed="step_scores",
            shares="step_scores",
        )
        for function in (
            evpv.correctness_rate,
            evpv.weighted_correctness,
            evpv.streak,
            evpv.geometric_mean,
            evpv.first_error,
        )
    ),
    Case(
        evpv.aggregate_steps,
        {"step_scores": [1.0, -1.0], "aggregate": "rate"},
        {"step_scores": "empty short"},
        signed="step_scores",
        shares="step_scores",
    ),
    Case(
        evpv.best_of_k,
        {"candidates": [0.5, 0.2], "correct": [True, False]},
        {"candidates": "item_none", "correct": "item_none"},
        signed="candidates",
    ),
    Case(
        evpv.macro_f1,
        {"gold": [1, -1, 0], "pred": [1, 1, -1]},
        {"pred": "item_none"},
        signed="gold pred",
    ),
    *(
        Case(
            function,
            {"constraints": ["AB = 10", "CD = 5"], "ratio": 0.5, "seed": 1, "sample_id": "a"},
            {"constraints": "empty short", "sample_id": "empty word"},
            shares="ratio",
        )
        for function in (evpv.corrupt_drop, evpv.corrupt_flip)
    ),
    Case(
        evpv.response_reliability,
        {"supports": [1.0, 0.5]},
        {"supports": "empty short item_none"},
        shares="supports",
    ),
    Case(
        evpv.read_fact,
        {"fact": "AB = 10", "source": "row 1"},
        {"fact": "word", "source": "empty word"},
    ),
    # Plans of tool calls
    *(
        Case(
            function,
            {"text": PLANNED, "tools": ["search"], "syntax": "tags"},
            {"text": "empty word"},
        )
        for function in (atp_bench.parse_calls, atp_bench.locate_calls)
    ),
    Case(atp_bench.check_calls, {"text": PLANNED, "n_context_images": 1}, {"text": "empty word"}),
    Case(
        atp_bench.validate_call,
        {"tool": "search", "args": {"query": "a"}, "required": ["query"], "n_context_images": 1},
        {"tool": "empty word", "args": "none empty", "required": "empty short"},
    ),
    Case(
        atp_bench.render_call,
        {"tool": "search", "args": {"query": "a"}},
        {"tool": "empty word", "args": "empty"},
    ),
    Case(
        atp_bench.with_placeholders,
        {"text": PLANNED, "calls": atp_bench.locate_calls(PLANNED, ["search"])},
        {"text": "empty word", "calls": "empty short"},
    ),
    Case(
        atp_bench.response_metrics,
        {"responses": PLANS, "missed": None, "calls_correct": None},
        {"responses": "empty short"},
    ),
    Case(atp_bench.aggregate, {"responses": PLANS}, {"responses": "empty short"}),
    Case(
        atp_bench.final_score,
        {"quality_0_1": 0.5, "plan_f1": 0.5},
        {"quality_0_1": OPTIONAL, "plan_f1": OPTIONAL},
        shares="quality_0_1 plan_f1 w_quality",
    ),
]
