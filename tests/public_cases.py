"""One valid call of every public function of policy, rewards and bench, and what it lets pass.

`test_public_arguments` spoils each argument of each call in turn. `lets` names, by argument, the
kinds of spoilt value that a function handles: they give a result, every other kind is refused.
"""

import base64
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

import burnish
from burnish import bench, media, policy, rewards, speech
from burnish.agents import policyalign, ssp, trace2skill
from burnish.agents import prompt as prompt_search
from burnish.bench import loaders
from burnish.bench.items import Item, Judged, message, responses_of
from burnish.lm import CallLog, ScriptedLM
from burnish.models import (
    audio_tokenizer,
    long_speech,
    masked_diffusion,
    siamesenorm,
    visual,
    visual_latent,
)
from burnish.rewards import checks, judges, models
from burnish.rewards.checks import relevance
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
from burnish.rewards.judges.rubric.items import Point, PointsItem
from burnish.rewards.judges.skill_rm.readout import Item as PairItem
from burnish.rewards.judges.skill_rm.readout import Tier
from burnish.rewards.select import Match
from burnish.tools import search, spreadsheet

PACKAGES = (
    policy,
    rewards,
    checks,
    judges,
    openrs,
    rubric,
    skill_rm,
    genrm,
    march,
    evpv,
    atp_bench,
    proxy_grm,
    models,
    bench,
    loaders,
    search,
    spreadsheet,
    ssp,
    trace2skill,
    policyalign,
    prompt_search,
    masked_diffusion,
    siamesenorm,
    long_speech,
    visual,
    visual_latent,
    audio_tokenizer,
    media,
    speech,
)

PUBLISHED = {
    "arc_score": "requested measured",
    "arc_values": "waypoints n",
    "dimension_dropout": "dims u p protected",
    "equal_power_fades": "n",
    "label_retention": "clips filter_rule",
    "noise_gain": "speech active noise snr_db",
    "overlap_statistics": "timeline",
    "plan_chunks": "frames max_frames context",
    "resolve_timeline": "sentences interrupt_tail",
    "semitones": "f0 reference",
    "cosine_loss": "pred target",
    "fit_pca": "embeddings k",
    "latent_loss": "pred target mask",
    "norm_ema": "value norms decay",
    "norm_match": "h norm",
    "norm_ratio": "hidden inputs",
    "pca_rank": "eigenvalues target",
    "pool_tokens": "tokens grid K",
    "project_latents": "v components mean",
    "reconstruct_latents": "coeffs components mean",
    "use_latent": "correct tau",
    "whiten_latents": "v components mean eigenvalues",
    "channel_normalise": "z eps",
    "perturb_latents": "zn alpha noise",
    "rq_codes": "x projection codebook",
    "rq_mtp_loss": "logits codes valid",
    "patchify_latents": "z P",
    "flow_pair": "noise data tau",
    "guided_velocity": "v_cond v_uncond scale",
    "si_sdr": "estimate reference",
    "log_spectral_distance": "a b eps",
    "frechet_distance": "mu1 cov1 mu2 cov2",
    "best_of_k": "candidates correct tie_rule",
    "build_checklist": "steps",
    "correctness_rate": "step_scores",
    "corrupt_drop": "constraints ratio",
    "corrupt_flip": "constraints ratio",
    "first_error": "step_scores",
    "gate": "raw visual_steps reliability",
    "geometric_mean": "step_scores",
    "macro_f1": "gold pred",
    "parse_step_verdict": "texts",
    "parse_step_verdict_strict": "texts",
    "reliability_from_audit": "severities",
    "streak": "step_scores",
    "weighted_correctness": "step_scores",
    "accuracy_by_group": "predictions labels groups",
    "accuracy_reward": "cases",
    "aggregate_criteria": "criteria min_score",
    "answers_match": "a b",
    "answer_kd": "student_logits teacher_probs temperature",
    "apply_edit": "text edit",
    "balanced_chunks": "n size",
    "band": "deviations",
    "bias_head_loss": "logits labels",
    "brpo_advantages": "outcomes reference_index skew_threshold",
    "candidate_order": "seed dataset sample_id n",
    "cells_equal": "a b",
    "clamp": "values default",
    "clipo_advantage": "verifier_rewards contrastive_rewards groups ddof eps",
    "club_categorical": "logits labels",
    "column_name": "n",
    "compose": "mode format_ok weights",
    "compose_variants": "format_ok variant_ids",
    "concordance": "human_sign_and_scores",
    "constraint_tools": "text",
    "contained_match": "pred golds",
    "contrastive_losses": "embeddings labels groups loss temperature scope anchors skip_trivial",
    "contrastive_reward": "per_sample_loss labels lam floor constant",
    "count_occurrences": "text needle",
    "decompose_variance": "losses",
    "dedupe": "edits",
    "elastic_bounds": "advantages eps_low eps_high strength center adv_cap macro_strength "
    "group_variance min_eps max_eps_low max_eps_high",
    "ema_control_variate": "losses t baseline lr",
    "enforce_pairs": "patches state",
    "epr_density": "t a b A r q kappa m",
    "equal": "pairs L",
    "dynamic_filter": "scores groups solver_n",
    "exact_match": "pred golds",
    "expand_range": "text max_row max_col",
    "extract_answer": "text",
    "extract_json": "texts",
    "extract_rubric": "text",
    "fact_reward": "claims checks",
    "first_token_grade": "logits label_ids",
    "fit_epr": "t_grid w n_starts mix_uniform",
    "fit_reference_stats": "rewards sd_floor",
    "format_ok": "texts",
    "gae": "rewards values mask gamma lam",
    "gd2po_advantage": "rewards groups response_lengths whiten variant tau",
    "gdpo_advantage": "rewards groups response_lengths whiten variant tau",
    "genrm_reward": "scores label first_pick_rate margin_scale margin_floor pos_weight_min "
    "pos_weight_max",
    "group_keep_ratio": "keep groups",
    "group_variance": "rewards groups r_min r_max",
    "grouped_pair_metrics": "r_chosen r_rejected group",
    "grpo_advantage": "rewards groups scale eps ddof",
    "isad_mask_prob": "p is_delimiter delta",
    "kl_penalty": "logp ref_logp kind",
    "length_label": "len_chosen len_rejected",
    "mdm_loss": "token_nll mask p eligible_count weight",
    "mean_elastic_budget": "rewards eps strength center ddof",
    "medalign_advantage": "rewards mean sd clip weights groups ddof eps",
    "mirror_masks": "u t eligible eps",
    "mm_rlhf": "rows",
    "mmrb_group": "rows",
    "mode_balanced_loss": "rl_loss sft_logp sft_mask lam",
    "normalize_answer": "text",
    "normalize_numeric_answer": "texts",
    "one_vs_n": "results",
    "optimal_t_density": "g v t_grid",
    "order_swap_aggregate": "gold predictions",
    "pair_outcome": "scores tie parse_failure",
    "parse_checks": "text",
    "parse_claims": "text",
    "parse_failures": "text",
    "parse_pair_scores": "text",
    "parse_pairwise_verdict": "texts",
    "parse_pairwise_verdict_truncated": "text finish_reason",
    "parse_rating": "texts lo hi",
    "parse_successes": "text",
    "per_reward_advantages": "rewards groups eps ddof",
    "siamese_block": "X Y first second norms block_index layout norm eps",
    "siamese_dit_block": "X Y cond first second W_mod b_mod block_index eps",
    "siamese_paper": "H sublayers normalized_input depth_scaling eps",
    "siamese_trunk": "H sublayers layout norm eps",
    "policy_loss": "logp old_logp advantages mask ratio_level clip_low clip_high dual_clip "
    "aggregation",
    "policy_loss_gradient": "logp old_logp advantages mask ratio_level clip_low clip_high dual_clip "
    "aggregation",
    "pool_hidden": "hidden mask",
    "proxy_reward": "cases",
    "ranking_score": "winner_vs_chosen",
    "redundancy_factor": "normalised eta",
    "reference_frozen_normalise": "rewards mean sd clip",
    "reference_match": "cases",
    "relevance_reward": "predicted gold num_grades kind",
    "risk_factor": "severity violation_rate",
    "rmbench_counts": "pairs winner_is_chosen_when predictions",
    "rmbench_metrics": "domains scores_chosen_rejected styles_per_sample",
    "sample_t": "t_grid density u",
    "sampler_variance": "p g v t_grid",
    "sanitize": "edits state",
    "sanitize_metadata": "metadata",
    "scale_reward": "scores mean_of_references w_scale",
    "score": "items tier_weights",
    "score_from_counts": "pairs",
    "section_bounds": "lines header",
    "sequential_knockout": "order quality tie_rule",
    "sign_conflict": "per_reward_advantages sign_eps",
    "snr_ratio": "per_reward_advantages eps",
    "split_docs_and_query": "prompt",
    "split_thinking": "text",
    "stable_int": "parts",
    "stepwise_advantages": "rewards groups segments mask weights credit eps ddof",
    "stratum_counts": "n",
    "tie_preference_loss": "diff_margins same_margins lam",
    "ties_score": "rows",
    "solver_score": "text golds",
    "rule_filter": "trajectory answer",
    "proposer_reward": "solver_rewards",
    "token_f1": "pred golds",
    "token_reverse_kl": "student_logits teacher_logits",
    "distillation.aggregate": "token_losses mask",
    "atp_bench.aggregate": "responses",
    "final_score": "quality_0_1 plan_f1 w_quality",
    "parse_calls": "text tools",
    "response_metrics": "responses",
    "validate_call": "tool args required",
    "ema": "teacher student decay",
    "policy_sensitivity": "student_logits teacher_logits mask",
    "tool_call_rewards": "output gold",
    "total_loss": "h_chosen h_rejected r_chosen r_rejected bias_label lam representation head",
    "tri_factor_weights": "progress severity violation_rate normalised previous eta_weak eta_red "
    "w_min w_max beta",
    "two_order_strict": "winners",
    "two_order_verdict": "forward_backward min_score rule",
    "two_order_votes": "forward_backward min_score rule",
    "verifiable_verdict": "scores_chosen_rejected",
    "vl_rewardbench": "rows",
    "vote": "outcomes rule inconsistent",
    "weakness_factor": "progress eta",
}
"""Names and keywords that other people's code calls; where two methods have the name, with theirs."""

ELSEWHERE = {
    "tests/speech: they need a voice, a file or a trained listener": "align_scene cast_scene embed_voice "
    "follow_report heard_marks label_file label_sound mix_scene read_script render_scene speech_segments "
    "timeline_svg transcribe write_timeline",
    "live objects; a config, a scorer or a recipe checks itself": (
        "advantages informative loss head_step label_tokens compare_weightings bind_check build "
        "build_all default_pool fingerprint from_function function_fingerprint build_judge anchored "
        "criteria_of judge_of random_edits reaggregate refiner in_consensus joined_audit rule_audit "
        "read_marks without_each register_verifier score_function decide_point "
        "read_judgement compare compare_judges differing edit_findings "
        "pair_findings versus_metrics run_table attribute_labels attribute_report contaminate "
        "merge_by_meaning pool_of report_of markdown united unified_diff split_long "
        "check_changes keep_sensitive make_report open_score "
        "prompt_report atp_scorer execute_call met_needs plan_of read_needs verdict_line probe_losses token_nll variance_report "
        "from_prenorm new_model generate_latents latent_step new_tokenizer new_visual has_lite0 draw_noise drop_sensitivity"
        " open_tokenizer new_representation new_generator open_generator draw_flow"
        " open_speech_folder save_speech_folder premise_counts"
    ),
    "files and names of files": (
        "sound_writer read_calls replay read_review write_review check_skill load_skill problems_of "
        "shipped_skills read_results benchmark load load_healthbench load_healthbench_marks "
        "load_alpaca_pairs load_ifeval load_judgebench load_lamp load_llmbar load_pandalm load_ppe "
        "load_rewardbench2 load_rmbench load_bigbench_mistake load_mr_gsm8k load_processbench "
        "load_atp load_faithbench load_halueval load_rgb load_wice load_vl_rewardbench "
        "load_multimodal_rewardbench load_mm_rlhf load_mathvision "
        "read_skill skill_prompt write_skill read_traces compare_workbooks open_workbook "
        "open_index read_passages write_index search_tool "
        "load_instructions load_prompts read_policy read_picture"
    ),
}
"""Public functions that are walked through by tests of their own, and why not here."""


ROWS = [{"prompt": "Say 7.", "answer": "7"}, {"prompt": "Say 8.", "answer": "8"}]
ASKED: dict[str, Any] = {"model": ScriptedLM(["7"]), "prompts": "Say 7.", "max_tokens": 2}
POLICY = str(Path(__file__).parents[1] / "recipes/policyalign/policy.md")
CALLS = [
    (
        burnish.generate,
        {**ASKED, "n": 1, "temperature": 0.0, "seed": 0, "system": "", "stop": [], "top_p": 1.0},
        "prompts-word system-word stop-list temperature-huge",
    ),
    (
        burnish.evaluate,
        {
            "model": ASKED["model"],
            "task": ROWS,
            "rewards": "match",
            "prompts": 2,
            "max_tokens": 2,
            "columns": None,
            "part": "",
        },
        "max_tokens-none columns-none columns-dict",
    ),
    (
        burnish.train,
        {
            **{"recipe": "grpo", "model": "tiny", "data": ROWS, "rewards": "match", "steps": 1},
            **{"columns": None, "held_out": 0.5, "seed": 0, "name": "a", "runs": "runs"},
            **{"again": False, "show": False, "on_event": None, "optimiser": {}, "rollout": {}},
        },
        "recipe-none steps-none columns-none columns-dict held_out-none seed-none name-none name-word "
        "runs-none runs-word on_event-none optimiser-none optimiser-dict rollout-none rollout-dict "
        "data-none rewards-none model-none model-dict model-word data-dict",
    ),
    (
        burnish.sweep,
        {
            **{
                "recipe": "tiny",
                "grid": {"steps": [1]},
                "seeds": 1,
                "settings": {},
                "runs": "runs",
            },
            **{"jobs": 1, "sample": None, "retry": False, "name": "", "show": None},
        },
        "grid-none grid-dict grid-list settings-none settings-dict settings-list runs-none runs-word "
        "jobs-none sample-none sample-huge name-word show-none jobs-huge",
    ),
    (
        burnish.optimise_prompt,
        {
            **{"model": ASKED["model"], "task": [*ROWS, {"prompt": "Say 9.", "answer": "9"}]},
            **{"rewards": "match", "proposer": "examples"},
            **{"prompt": None, "rounds": 1, "candidates": 1, "shown": 1, "trial": 1, "confirm": 1},
            **{"alpha": 0.05, "seed": 0, "max_tokens": 2, "columns": None, "part": "", "out": None},
        },
        "proposer-none prompt-none prompt-word max_tokens-none columns-none columns-dict out-none "
        "out-word",
    ),
    (
        burnish.align,
        {
            **{"model": "tiny", "policy": POLICY, "out": "aligned", "steps": 1, "seed": 0},
            **{"per_clause": 1, "score": "kl", "keep": 0.5, "benign_share": 0.2, "max_tokens": 4},
            **{"keep_truncated": False, "teacher": "ema", "force": False},
        },
        "model-word policy-word out-word",
    ),
    (burnish.load_run, {"reference": "a", "runs": "runs"}, ""),
    (burnish.load_runs, {"folder": "runs", "form": "pandas"}, "folder-word"),
    (burnish.compare, {"run_a": "a", "run_b": "b", "step": None}, "step-none step-huge"),
    (
        burnish.judge,
        {
            **{
                "prompt": "Say 7.",
                "model": ASKED["model"],
                "method": "direct",
                "both_orders": True,
            },
            **{"options": None, "max_tokens": 2},
        },
        "prompt-word options-none options-dict options-list max_tokens-none",
    ),
    (
        burnish.score,
        {"reward": "match", "prompt": "Say 7.", "response": "7"},
        "prompt-word response-word response-list",
    ),
    (burnish.Config.load, {"recipe": "tiny"}, ""),
    (burnish.Config.load("tiny").save, {"path": "a.toml"}, "path-word"),
    (CallLog, {"path": "calls.jsonl"}, "path-none path-word"),
]
"""Calls of `import burnish` that are refused before any work, and values that they do take."""


class Case(NamedTuple):
    """A call that works."""

    function: Callable[..., Any]
    given: Mapping[str, Any]
    lets: Mapping[str, str] = {}
    """Kinds of spoilt value by argument that give a result."""
    keeps_nan: bool = False
    """Missing stays missing: a NaN that goes in may come out."""


def f64(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


REWARDS = f64([[1.0, 0.2], [0.0, 0.4], [1.0, 0.1], [0.5, 0.9]])
ONE = f64([1.0, 0.0, 1.0, 0.5])
GROUPS = [0, 0, 1, 1]
ENDS = [0.0, 1.0]
WAV = media.encode_sound([0.0, 0.5, -0.5, 0.0], 8000)
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGNgYGAAAAAEAAH2FzhVAAAAAElFTkSuQmCC"
)
PLANE = {"components": [[0.6], [0.8]], "mean": [1.0, 1.0]}
WAVES = torch.sin(torch.arange(60, dtype=torch.float64)).reshape(2, 30)
LOGP = f64([[-1.0, -2.0], [-0.5, -0.7]])
MASK = f64([[1.0, 1.0], [1.0, 0.0]])
CRITERIA = [{"type": "core", "winner": "A", "score": 2}, {"winner": "B", "score": -1}]
TIES = [
    {"id": "ref:1", "num_correct": 1, "ratings": [9, 3]},
    {"id": "tied:1", "num_correct": 2, "ratings": [9, 8, 3]},
]
ITEMS = [
    {"tier": "essential", "level": 2, "tag": "safety"},
    {"tier": "important", "level": 1, "tag": "safety"},
]
ASKED_TASK = burnish.Task("t", (burnish.Message("user", "What is 3 + 4?"),))
LABELLED = [Labelled("a", 1), Labelled("b", 2)]
JUDGED = [
    Judged(name, "judge", choice=(0,), best=(place,), info={"right_style": "1", "wrong_style": "0"})
    for place, name in enumerate("ab")
]
MATCHES = [Match(0, 1, 1.0), Match(1, 2, 0.0), Match(0, 2, None)]
ANSWER = '<think> look </think> <tool_call>\n{"name": "f", "parameters": {"x": 1}}\n</tool_call>'
MISSING = "nan"  # of rewards: a missing one is NaN by contract
PARSED = "none empty word item_none"  # what cannot be read is a value, not an exception
PLANNED = '<tool name="search">{"query": "a"}</tool>'
PLANS = [{"calls_correct": [True, False], "missed": 1}, {"calls_correct": [], "missed": 0}]
OPTIONAL = "none"
ALIAS = "word number"  # an answer is a text or a number
RULES = ssp.Rules()
BLOCKS = "<rubric>Facts 100%</rubric><eval>both</eval><answer>1</answer>"

LOSS = {
    "logp": LOGP,
    "old_logp": LOGP - 0.1,
    "advantages": f64([1.0, -1.0]),
    "mask": MASK,
    "ratio_level": "token",
    "clip_low": f64([0.2, 0.2]),
    "clip_high": 0.2,
    "dual_clip": 3.0,
    "aggregation": "token-mean",
}

PAIR: dict[str, Any] = {
    "chosen_logp": f64([-3.0, -5.0]),
    "rejected_logp": f64([-4.0, -4.5]),
    "ref_chosen_logp": f64([-3.5, -5.0]),
    "ref_rejected_logp": f64([-3.5, -5.0]),
    "beta": 0.1,
    "reduction": "mean",
}
LOGITS: dict[str, Any] = {
    "student_logits": f64([[0.1, 0.9, -1.0], [0.0, 2.0, 0.3]]),
    "teacher_logits": f64([[0.5, 0.2, -0.3], [1.0, 0.0, 0.3]]),
    "temperature": 1.0,
    "top_k": 2,
}

STREAMS = {"X": f64([[[1.0, 2.0], [3.0, 4.0]]]), "Y": f64([[[2.0, 1.0], [0.5, 4.0]]])}
MATRICES = {"first": f64([[1.0, 0.5], [0.0, 1.0]]), "second": f64([[0.0, 1.0], [1.0, 0.0]])}
SCRIPT = {
    "global": {"speakers": [{"id": "A"}]},
    "sentences": [{"speaker": "A", "text": "Yes.", "tone": "tired"}],
    "sources": {"sentences[0].tone": "plan"},
}
CASES = [
    # Two residual streams
    Case(
        siamesenorm.siamese_block,
        {**STREAMS, **MATRICES, "norms": {"first_x": None}, "block_index": 1}
        | {"layout": "post_pre", "norm": "rms", "eps": 1e-5},
        {"norms": "none empty"},
    ),
    Case(
        siamesenorm.siamese_trunk,
        {"H": STREAMS["X"], "sublayers": list(MATRICES.values())}
        | {"layout": "hybrid_pre", "norm": "layer", "eps": 1e-6},
        {"H": "empty short"},
    ),
    Case(
        siamesenorm.siamese_dit_block,
        {**STREAMS, **MATRICES, "cond": f64([[0.5, 1.0, 2.0]]), "W_mod": torch.ones(12, 3) / 9}
        | {"b_mod": torch.zeros(12), "block_index": 0, "eps": 1e-6},
        {"b_mod": "none"},
    ),
    Case(
        siamesenorm.siamese_paper,
        {"H": STREAMS["X"], "sublayers": list(MATRICES.values()), "depth_scaling": "sqrt_l"}
        | {"eps": 1e-5, "x_gain": 1.0, "y_gain": 0.5, "x_start": "embedding", "norm": "rms"},
        {"H": "empty short", "sublayers": "short"},
    ),
    # Skills from trajectories, and cells of workbooks
    Case(
        trace2skill.section_bounds,
        {"lines": ["# A", "x"], "header": "# A"},
        {"lines": "empty short", "header": "empty word"},
    ),
    Case(
        trace2skill.apply_edit,
        {"text": "# A\nx", "edit": {"op": "delete_section", "target_section": "# A"}},
        {"text": "empty word"},
    ),
    Case(
        trace2skill.dedupe,
        {"edits": [{"op": "create", "file": "references/a.md"}], "same": "target"},
        {"edits": "empty short"},
    ),
    Case(
        trace2skill.sanitize,
        {
            "edits": [{"op": "create", "file": "references/a.md"}],
            "state": {"SKILL.md": "# A"},
            "protected": ["references/b.md"],
        },
        {"edits": "empty short", "state": "empty", "protected": "empty short"},
    ),
    Case(
        trace2skill.enforce_pairs,
        {"patches": [{"edits": []}], "state": {"SKILL.md": "# A"}},
        {"patches": "empty short", "state": "empty"},
    ),
    Case(trace2skill.parse_failures, {"text": "# Failure Cause Item 1"}, {"text": "empty word"}),
    Case(trace2skill.parse_successes, {"text": "# Success Memory Item 1"}, {"text": "empty word"}),
    Case(trace2skill.balanced_chunks, {"n": 7, "size": 3}),
    Case(trace2skill.needed_support, {"count": 60, "tau": 0.02}),
    Case(trace2skill.choose_skill, {"before": [True, False], "after": [True, True]}),
    Case(
        trace2skill.held_out,
        {"ids": ["a", "b"], "share": 0.5, "seed": 1},
        {"ids": "empty short"},
    ),
    Case(
        trace2skill.skill_problems,
        {"files": {"SKILL.md": "# A"}, "name": "a"},
        {"files": "empty", "name": "empty word"},
    ),
    Case(spreadsheet.column_name, {"n": 27}),
    Case(spreadsheet.column_number, {"name": "AA"}),
    Case(
        spreadsheet.expand_range,
        {"text": "A1:B2", "max_row": 9, "max_col": 9},
        {"max_row": "none", "max_col": "none"},
    ),
    Case(
        spreadsheet.cells_equal,
        {"a": 1.0, "b": 2.0},
        {"a": "none word inf", "b": "none word inf"},
    ),
    # Policy: advantages and what selects among them
    Case(
        policy.grpo_advantage,
        {
            "rewards": REWARDS,
            "groups": GROUPS,
            "scale": "group_std",
            "eps": 1e-6,
            "ddof": 1,
            "weights": [1.0, 2.0],
            "singletons": "batch_mean",
            "sizes": [len(GROUPS)] * len(GROUPS),
            "roles": GROUPS,
        },
        {"rewards": MISSING, "weights": OPTIONAL, "sizes": OPTIONAL, "roles": OPTIONAL},
    ),
    Case(
        policy.per_reward_advantages,
        {"rewards": REWARDS, "groups": GROUPS, "eps": 1e-6, "ddof": 1},
        {"rewards": MISSING},
    ),
    Case(
        policy.normalise_then_sum,
        {"rewards": REWARDS, "groups": GROUPS, "eps": 1e-6, "ddof": 1, "weights": [1.0, 2.0]},
        {"rewards": MISSING, "weights": OPTIONAL},
    ),
    Case(
        policy.raw_advantage,
        {"rewards": REWARDS, "groups": GROUPS, "weights": [1.0, 2.0]},
        {"rewards": MISSING, "weights": OPTIONAL},
    ),
    *(
        Case(
            function,
            {
                "rewards": REWARDS,
                "groups": GROUPS,
                "response_lengths": [3, 4, 5, 6],
                "variant": "hard",
                "tau": 0.5,
                "weights": [1.0, 2.0],
                "eps": 1e-6,
                "ddof": 1,
            },
            {"rewards": MISSING, "weights": OPTIONAL, "response_lengths": OPTIONAL, **lets},
        )
        for function, lets in (
            (policy.gdpo_advantage, {"variant": OPTIONAL, "tau": OPTIONAL}),
            (policy.gd2po_advantage, {}),
        )
    ),
    Case(
        policy.batch_whiten,
        {
            "advantages": ONE,
            "lengths": [3, 4, 5, 6],
            "keep": f64([1, 1, 1, 1]),
            "signal": f64([1, 1, 1, 1]),
            "scope": "token",
            "eps": 1e-8,
        },
        {"keep": OPTIONAL, "signal": OPTIONAL},
    ),
    Case(
        policy.brpo_advantages,
        {"outcomes": f64([1.0, 0.0, -1.0]), "reference_index": 1, "skew_threshold": 0.6},
        {"outcomes": "nan short", "reference_index": OPTIONAL},
    ),
    Case(
        policy.clipo_advantage,
        {
            "verifier_rewards": ONE,
            "contrastive_rewards": -ONE,
            "groups": GROUPS,
            "ddof": 1,
            "eps": 1e-6,
        },
        {"verifier_rewards": MISSING},
    ),
    Case(
        policy.medalign_advantage,
        {
            "rewards": REWARDS,
            "mean": [0.5, 0.5],
            "sd": [1.0, 1.0],
            "clip": 5.0,
            "weights": [1.0, 1.0],
            "groups": GROUPS,
            "ddof": 1,
            "eps": 1e-6,
        },
        {"rewards": MISSING, "weights": OPTIONAL, "clip": "inf"},
    ),
    Case(
        policy.stepwise_advantages,
        {
            "rewards": REWARDS,
            "groups": GROUPS,
            "segments": [[0, 1], [0, -1], [0, 1], [0, 1]],
            "mask": [[1, 1], [1, 1], [1, 1], [1, 0]],
            "weights": [1.0, 0.5],
            "credit": "local",
            "eps": 1e-6,
            "ddof": 1,
        },
        {"rewards": MISSING, "weights": OPTIONAL},
    ),
    Case(
        policy.process_advantages,
        {
            "steps": REWARDS,
            "groups": GROUPS,
            "segments": [[0, 1], [0, -1], [0, 1], [0, 1]],
            "mask": [[1, 1], [1, 1], [1, 1], [1, 0]],
            "credit": "local",
            "eps": 1e-6,
            "ddof": 1,
        },
        {"steps": MISSING},
    ),
    Case(policy.informative_groups, {"advantages": ONE, "groups": GROUPS}),
    Case(
        policy.skew_filter,
        {"outcomes": f64([1.0, -1.0, 0.0, 1.0]), "groups": GROUPS, "threshold": 0.6},
        {"outcomes": MISSING},
    ),
    Case(
        policy.sign_conflict,
        {"per_reward_advantages": REWARDS - 0.5, "sign_eps": 1e-8, "weights": [1.0, 1.0]},
        {"per_reward_advantages": "nan empty short", "weights": OPTIONAL},
    ),
    Case(
        policy.snr_ratio,
        {"per_reward_advantages": REWARDS - 0.5, "eps": 1e-8, "weights": [1.0, 1.0]},
        {"per_reward_advantages": "nan empty short", "weights": OPTIONAL},
    ),
    Case(
        policy.group_keep_ratio,
        {"keep": [1, 0, 1, 1], "groups": GROUPS, "present": [1, 1, 1, 0]},
        {"present": OPTIONAL},
    ),
    Case(
        policy.magnitude_filter,
        {"values": ONE, "keep_count": 2, "share": None, "among": [1, 1, 1, 0]},
        {"values": "nan inf", "among": OPTIONAL, "share": OPTIONAL},
    ),
    Case(
        policy.random_filter,
        {"count": 4, "keep_count": 2, "seed": 0, "share": None, "among": [1, 1, 1, 0]},
        {"among": OPTIONAL, "share": OPTIONAL},
    ),
    Case(
        policy.overlong_penalty,
        {"lengths": [3, 9, 12], "limit": 10, "buffer": 4},
        {"lengths": "empty short"},
    ),
    # Policy: what a recipe remembers
    Case(
        policy.fit_reference_stats,
        {"rewards": REWARDS, "sd_floor": 1e-3},
        {"rewards": "nan short"},
    ),
    Case(
        policy.reference_frozen_normalise,
        {"rewards": REWARDS, "mean": [0.5, 0.5], "sd": [1.0, 2.0], "clip": 5.0},
        {"rewards": "nan empty short", "clip": "inf"},
        keeps_nan=True,
    ),
    Case(
        policy.weakness_factor,
        {"progress": [0.1, -0.3, 0.4], "eta": 0.5},
        {"progress": "nan item_none empty short"},
    ),
    Case(
        policy.risk_factor,
        {"severity": [0.0, 2.0], "violation_rate": [0.1, 0.2]},
        {"violation_rate": "nan item_none"},
    ),
    Case(
        policy.redundancy_factor,
        {"normalised": REWARDS, "eta": 1.0},
        {"normalised": "nan empty short"},
    ),
    Case(
        policy.tri_factor_weights,
        {
            "progress": [0.1, -0.3],
            "severity": [0.0, 2.0],
            "violation_rate": [0.1, 0.2],
            "normalised": REWARDS,
            "previous": [1.0, 1.0],
            "eta_weak": 0.5,
            "eta_red": 1.0,
            "w_min": 0.2,
            "w_max": 4.0,
            "beta": 0.8,
        },
        {
            "progress": "nan item_none",
            "violation_rate": "nan item_none",
            "normalised": "nan short empty",
            "w_max": "inf",
        },
    ),
    Case(
        policy.adapted_coefficient,
        {"coefficient": 0.1, "nll": 2.0, "target": 2.1, "rate": 0.5, "low": 0.01, "high": 1.0},
        {"nll": "none nan inf"},
    ),
    Case(
        policy.gradient_overlap,
        {"first": [ONE, ONE], "second": [ONE, -ONE]},
        {},
    ),
    # Policy: baselines, surrogates and tokens of other libraries
    Case(
        policy.rloo_advantage,
        {"rewards": REWARDS, "groups": GROUPS, "weights": [1.0, 2.0]},
        {"rewards": MISSING, "weights": OPTIONAL},
    ),
    Case(
        policy.opo_advantage,
        {"rewards": REWARDS, "groups": GROUPS, "lengths": [3, 4, 5, 6], "weights": [1.0, 2.0]},
        {"rewards": MISSING, "weights": OPTIONAL},
    ),
    Case(
        policy.reinforce_pp_advantage,
        {
            "rewards": REWARDS,
            "lengths": [3, 4, 5, 6],
            "scope": "token",
            "weights": [1.0, 2.0],
            "eps": 1e-8,
        },
        {"rewards": MISSING, "weights": OPTIONAL},
    ),
    Case(
        policy.remax_advantage,
        {"rewards": REWARDS, "baselines": REWARDS / 2, "weights": [1.0, 2.0]},
        {"rewards": MISSING, "baselines": MISSING, "weights": OPTIONAL},
    ),
    Case(
        policy.cispo_surrogate,
        {
            "logp_BT": LOGP,
            "ratio_BT": LOGP.exp(),
            "advantages_BT": LOGP,
            "low_BT": f64([[0.2]]),
            "high_BT": f64([[0.2]]),
        },
        {"logp_BT": "short", "ratio_BT": "short", "advantages_BT": "short"},
    ),
    Case(
        policy.sapo_surrogate,
        {
            "ratio_BT": LOGP.exp(),
            "advantages_BT": LOGP,
            "tau_positive": 1.0,
            "tau_negative": 1.05,
        },
        {"ratio_BT": "short", "advantages_BT": "short"},
    ),
    Case(
        policy.gmpo_surrogate,
        {
            "log_ratio_BT": LOGP,
            "advantages_BT": LOGP,
            "low_BT": f64([[0.2]]),
            "high_BT": f64([[0.2]]),
            "mask_BT": MASK,
        },
        {"log_ratio_BT": "short", "advantages_BT": "short", "mask_BT": "short"},
    ),
    Case(policy.token_covariance, {"advantages": ONE, "logp": [-1.0, -2.0, -0.5, -0.7]}),
    Case(
        policy.clip_cov_tokens,
        {"covariance": ONE, "share": 0.5, "low": 0.2, "high": 5.0, "seed": 3},
        {"covariance": "empty short"},
    ),
    Case(policy.kl_cov_tokens, {"covariance": ONE, "share": 0.5}, {"covariance": "empty short"}),
    Case(
        policy.high_entropy_tokens, {"entropies": ONE, "share": 0.5}, {"entropies": "empty short"}
    ),
    Case(
        policy.adapted_entropy_coefficient,
        {
            "coefficient": 0.1,
            "entropy": 0.3,
            "target": 0.5,
            "step": 0.01,
            "low": 0.0,
            "high": 1.0,
        },
    ),
    # Policy: trust region
    Case(
        policy.elastic_bounds,
        {
            "advantages": ONE,
            "eps_low": 0.2,
            "eps_high": 0.2,
            "strength": 0.5,
            "center": 1.0,
            "adv_cap": 3.0,
            "macro_strength": 0.5,
            "group_variance": [0.5, 0.5, 0.1, 0.1],
            "min_eps": 0.05,
            "max_eps_low": 0.8,
            "max_eps_high": 0.8,
        },
        {"advantages": "nan", "adv_cap": "none inf", "group_variance": "nan item_none"},
    ),
    Case(
        policy.group_variance,
        {"rewards": ONE, "groups": GROUPS, "r_min": 0.0, "r_max": 1.0},
        {"rewards": MISSING},
    ),
    Case(
        policy.mean_elastic_budget,
        {"rewards": ONE, "eps": 0.2, "strength": 0.5, "center": 1.0, "ddof": 0},
        {"rewards": "nan short"},
    ),
    Case(
        policy.static_bounds,
        {"advantages_B": ONE, "low": 0.2, "high": 0.2},
        keeps_nan=True,
        lets={"advantages_B": "nan inf empty short"},
    ),
    Case(
        policy.pass_rates,
        {"rewards": ONE, "groups": GROUPS, "r_min": 0.0, "r_max": 1.0},
        {"rewards": MISSING},
    ),
    Case(policy.pass_buckets, {"rates": [0.1, 0.5, 1.0]}, {"rates": "nan item_none empty short"}),
    Case(policy.bucket_shares, {"sums": f64([[1.0] * 5, [2.0] * 5])}),
    Case(
        policy.bucket_sums,
        {
            "is_clipped": torch.tensor([[True, False]] * 2),
            "used": torch.tensor([[True, True]] * 2),
            "buckets": torch.tensor([0, 4]),
        },
    ),
    # Policy: the loss
    Case(
        policy.policy_loss,
        {
            **LOSS,
            "keep": [1, 1],
            "normaliser": None,
            "max_tokens": 2,
            "buckets": [0, 1],
        },
        {
            "dual_clip": OPTIONAL,
            "keep": OPTIONAL,
            "normaliser": OPTIONAL,
            "max_tokens": OPTIONAL,
            "buckets": "none nan item_none inf",
            "clip_low": "inf short",
            "clip_high": "inf",
        },
    ),
    Case(
        policy.policy_loss_gradient,
        LOSS,
        {"dual_clip": OPTIONAL, "clip_low": "inf short", "clip_high": "inf"},
    ),
    Case(
        policy.kl_penalty,
        {"logp": LOGP, "ref_logp": LOGP - 0.2, "kind": "k3", "ratio": torch.ones_like(LOGP)},
        {"ratio": OPTIONAL},
    ),
    *(
        Case(
            function,
            {"logp": LOGP, "sampler_logp": LOGP - 0.2, "mask": MASK, "level": "token", **limits},
        )
        for function, limits in (
            (policy.truncated_importance, {"cap": 2.0}),
            (policy.masked_importance, {"low": 0.5, "high": 5.0}),
        )
    ),
    Case(policy.token_entropy, {"logits": LOGP}, {"logits": "nan inf short empty"}, keeps_nan=True),
    Case(policy.sft_nll, {"logp": LOGP, "mask": MASK, "tokens": 3}, {"tokens": OPTIONAL}),
    Case(
        policy.mode_balanced_loss,
        {"rl_loss": 0.5, "sft_logp": LOGP, "sft_mask": MASK, "lam": 0.1},
        {"sft_mask": "empty"},
    ),
    Case(
        policy.aggregate_loss,
        {
            "values_BT": LOGP,
            "mask_BT": MASK,
            "mode": "token-mean",
            "keep_B": f64([1, 1]),
            "normaliser": None,
            "max_tokens": 2,
        },
        {
            "values_BT": "nan inf",
            "mask_BT": "nan inf",
            "keep_B": "none nan inf",
            "normaliser": OPTIONAL,
            "max_tokens": OPTIONAL,
        },
        keeps_nan=True,
    ),
    Case(
        policy.normaliser_of,
        {"mask_BT": MASK, "keep_B": f64([1, 1])},
        {"mask_BT": "nan inf", "keep_B": "none nan inf"},
    ),
    Case(
        policy.log_ratio,
        {"logp_BT": LOGP, "old_logp_BT": LOGP, "mask_BT": MASK, "level": "token"},
        {"logp_BT": "nan inf", "old_logp_BT": "nan inf", "mask_BT": "nan inf"},
        keeps_nan=True,
    ),
    Case(
        policy.clipped_surrogate,
        {
            "ratio_BT": LOGP.exp(),
            "advantages_BT": LOGP,
            "low_BT": f64([[0.2]]),
            "high_BT": f64([[0.2]]),
            "dual_clip": 3.0,
        },
        {
            "ratio_BT": "nan inf short",
            "advantages_BT": "nan inf short",
            "low_BT": "nan inf",
            "high_BT": "nan inf",
            "dual_clip": OPTIONAL,
        },
        keeps_nan=True,
    ),
    Case(
        policy.first_token_grade,
        {"logits": f64([0.1, 0.2, 0.9]), "label_ids": [0, 2]},
        {},
    ),
    Case(
        policy.answer_kd,
        {
            "student_logits": f64([[0.1, 0.9]]),
            "teacher_probs": [[0.3, 0.7]],
            "temperature": 2.0,
            "reduction": "mean",
        },
    ),
    # Policy: pairs and teachers
    Case(policy.dpo_loss, {**PAIR, "label_smoothing": 0.1}),
    Case(policy.ipo_loss, PAIR),
    Case(
        policy.completion_logp,
        {"logp": LOGP, "mask": MASK, "shared": [1, 2], "ld_alpha": 0.5},
        {"shared": OPTIONAL},
    ),
    Case(
        policy.token_reverse_kl,
        {**LOGITS, "support": "student-topk", "kl_clip": 2.0},
        {"kl_clip": OPTIONAL},
    ),
    Case(policy.token_forward_kl, LOGITS),
    Case(
        policyalign.aggregate,
        {"token_losses": f64([1.0, 2.0]), "mask": [1, 0], "tokens": 3},
        {"tokens": OPTIONAL},
    ),
    Case(policyalign.clauses_of, {"policy": "- Law: none."}, {"policy": "word"}),
    Case(
        policyalign.different,
        {"texts": ["a b", "c"], "known": ["d"], "overlap": 0.9},
        {"texts": "empty short", "known": "empty short"},
    ),
    Case(
        policyalign.parse_policy,
        {"text": "Be kind.", "name": "p", "digest": ""},
        {"text": "word", "name": "empty word", "digest": "none empty word number"},
    ),
    Case(policyalign.read_guard, {"reply": "Safety: Safe"}, {"reply": "empty word"}),
    Case(policyalign.read_requests, {"reply": '["a"]'}, {"reply": "empty word"}),
    Case(
        policy.ema,
        {"teacher": [1.0, 2.0], "student": [2.0, 1.0], "decay": 0.9, "buffers": ["w"]},
        {"buffers": "short empty"},
    ),
    Case(
        policy.policy_sensitivity,
        {k: v for k, v in LOGITS.items() if k != "temperature"} | {"mask": [1, 1], "score": "kl"},
    ),
    Case(policy.sampled_kl, {"logp": LOGP, "teacher_logp": LOGP - 0.2}),
    Case(
        policy.distil_loss,
        {**LOGITS, "mask": [1, 0], "divergence": "reverse", "tokens": 3},
        {"tokens": OPTIONAL},
    ),
    # Policy: the contrast
    Case(
        policy.contrastive_losses,
        {
            "embeddings": f64([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.5, 0.5]]),
            "labels": [1, 1, 0, 1],
            "groups": [0, 0, 0, 0],
            "loss": "soft_nn",
            "temperature": 0.05,
            "scope": "group",
            "anchors": "correct_only",
            "similarity": "cosine",
            "seed": 0,
            "keys": torch.tensor([3, 4, 5, 6]),
            "duplicate_ids": [0, 1, 2, 3],
            "dedup_cos": 0.999,
            "usable": [1, 1, 1, 1],
        },
        {
            "embeddings": "nan inf",
            "keys": OPTIONAL,
            "duplicate_ids": "none nan empty short word inf item_none",
            "usable": OPTIONAL,
        },
    ),
    Case(
        policy.contrastive_reward,
        {
            "per_sample_loss": ONE,
            "labels": [1, 0, 1, 1],
            "lam": 0.2,
            "floor": -0.5,
            "constant": 0.0,
            "usable": [1, 1, 1, 1],
        },
        {"usable": OPTIONAL},
    ),
    Case(
        policy.pool_hidden,
        {"hidden": f64([[[1.0, 2.0], [3.0, 4.0]]]), "mask": [[1, 1]]},
        {"hidden": "nan inf"},
        keeps_nan=True,
    ),
    # Rewards: pairs, votes, tournaments
    Case(rewards.parse_pair_scores, {"text": "<scores>7, 8</scores>"}, {"text": "none empty word"}),
    Case(
        rewards.pair_outcome,
        {"scores": [7.0, 8.0], "tie": 0.0, "parse_failure": 0.0},
        {"scores": "none nan inf empty short item_none"},
    ),
    Case(
        rewards.vote,
        {"outcomes": [1.0, 1.0], "rule": "unanimous", "inconsistent": 0.0},
        {"outcomes": "nan empty short item_none"},
    ),
    Case(
        rewards.genrm_reward,
        {
            "scores": [7.0, 8.0],
            "label": 1,
            "first_pick_rate": 0.5,
            "margin_scale": 2.0,
            "margin_floor": 0.2,
            "pos_weight_min": 0.5,
            "pos_weight_max": 2.0,
        },
        {"scores": "none nan inf empty short item_none"},
    ),
    Case(
        rewards.sequential_knockout,
        {"order": [2, 0, 1], "quality": [0.1, 0.9, 0.4], "tie_rule": "incumbent"},
        {"quality": "item_none", "order": "short"},
    ),
    Case(rewards.win_counts, {"count": 3, "matches": MATCHES}, {"matches": "empty short"}),
    Case(
        rewards.bradley_terry,
        {"count": 3, "matches": MATCHES, "prior": 0.1, "tolerance": 1e-10},
        {"matches": "empty short"},
    ),
    Case(
        rewards.expected_value,
        {"scores": [0.1, 0.9], "quality": [0.0, 1.0]},
        {"scores": "item_none"},
    ),
    Case(
        models.tie_preference_loss,
        {"diff_margins": [1.0, 2.0], "same_margins": [0.1], "lam": 1.0},
        {"diff_margins": "empty short", "same_margins": "empty short"},
    ),
    Case(
        models.bradley_terry_loss,
        {
            "r_chosen": torch.tensor([1.0, 2.0]),
            "r_rejected": torch.tensor([0.5, 3.0]),
            "margin": torch.tensor([0.0, 0.5]),
            "target": torch.tensor([1.0, 0.5]),
            "reduction": "mean",
        },
        {"margin": "none", "target": "none"},
    ),
    Case(models.centring_loss, {"r_chosen": [1.0, 2.0], "r_rejected": [0.5, 3.0]}),
    Case(models.pair_calibration, {"r_chosen": [1.0, 2.0], "r_rejected": [0.5, 3.0], "bins": 5}),
    # Rewards: checks
    Case(checks.constraint_tools, {"text": "Two words."}, {"text": "empty word"}),
    Case(
        checks.count_occurrences,
        {"text": "a b a", "needle": "a"},
        {"text": "empty word", "needle": "empty word"},
    ),
    Case(checks.normalize_answer, {"text": "The Answer"}, {"text": "empty word"}),
    *(
        Case(
            function,
            {"pred": "the answer is 4", "golds": ["4", "four"]},
            {
                "pred": "none empty word number",
                "golds": "none empty word short item_none item_number",
            },
        )
        for function in (checks.exact_match, checks.contained_match, checks.token_f1)
    ),
    Case(
        checks.normalize_numeric_answer,
        {"texts": ["#### 4", "so 5"]},
        {"texts": f"{PARSED} short"},
    ),
    Case(
        checks.tool_call_rewards,
        {"output": ANSWER, "gold": ANSWER, "dialect": "blocks"},
        {"output": "empty word"},
    ),
    Case(
        relevance.relevance_reward,
        {"predicted": 1, "gold": 2, "num_grades": 3, "kind": "exact"},
        {"predicted": "none nan inf"},
    ),
    Case(
        relevance.leading_grade,
        {"text": "2 because", "labels": ["0", "1", "2"]},
        {"text": "empty word", "labels": "empty short word"},
    ),
    # Judges: readouts and benchmarks
    Case(
        judges.parse_pairwise_verdict,
        {"texts": ["[[A]]", "B>A"], "finish_reason": "stop"},
        {"texts": f"{PARSED} short", "finish_reason": "none empty word number"},
    ),
    Case(
        judges.parse_pairwise_verdict_truncated,
        {"text": "[[A]]", "finish_reason": "length"},
        {"text": "none empty word", "finish_reason": "none empty word number"},
    ),
    Case(
        judges.parse_rating,
        {"texts": ["8/10", "7."], "lo": 1, "hi": 10},
        {"texts": f"{PARSED} short"},
    ),
    Case(
        judges.ranking_score,
        {"winner_vs_chosen": ["A", "B"], "chosen": None},
        {"winner_vs_chosen": "empty item_none item_number", "chosen": "none word"},
    ),
    Case(
        judges.score_from_counts,
        {"pairs": (3, 5), "total": None},
        {"pairs": "none nan inf item_none empty", "total": "none word"},
    ),
    Case(
        judges.clamp,
        {"values": [0.2, 1.5], "default": 0.5},
        {"values": "none nan inf item_none empty short word"},
    ),
    Case(
        judges.reference_match,
        {"cases": ("4", ["it is 4", "it is 14"]), "responses": None},
        {"cases": "empty", "responses": OPTIONAL},
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
        {"predicted": "item_none nan inf"},
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
        {"prompt_tokens": OPTIONAL, "call_s": OPTIONAL, "prices": OPTIONAL},
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
        )
        for function, rule in (
            (openrs.two_order_verdict, "reference"),
            (openrs.two_order_votes, "votes"),
        )
    ),
    Case(openrs.two_order_strict, {"winners": ("A", "B")}, {"winners": "item_none item_number"}),
    Case(openrs.one_vs_n, {"results": [1, 0]}, {"results": "nan inf item_none short"}),
    Case(
        openrs.verifiable_verdict,
        {"scores_chosen_rejected": (1, 0)},
        {"scores_chosen_rejected": "nan inf item_none"},
    ),
    Case(openrs.extract_json, {"texts": ['{"a": 1}', "no"]}, {"texts": f"{PARSED} short"}),
    Case(
        openrs.asymmetric_advantages,
        {"rewards": [0.6, 0.4], "parent": 0.5, "kappa": 0.1},
        {"rewards": "empty short"},
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
        )
        for function in (rubric.score, rubric.explain)
    ),
    Case(rubric.dialogue_score, {"turns": [0.5, 0.7]}, {"turns": "empty short item_none"}),
    Case(rubric.equal, {"pairs": (0.5, 0.6), "L": 0.05}, {"pairs": "empty"}),
    Case(
        rubric.merge_equal,
        {"scores": [0.5, 0.53, None], "L": 0.05},
        {"scores": "empty short item_none"},
    ),
    Case(
        rubric.scale_reward,
        {"scores": [0.5, 0.9], "mean_of_references": 0.6, "w_scale": 2.0},
        {"scores": "empty short"},
    ),
    Case(
        rubric.concordance,
        {"human_sign_and_scores": [(1, 0.8, 0.5), (-1, 0.7, 0.6)]},
        {"human_sign_and_scores": "empty short"},
    ),
    Case(rubric.band, {"deviations": [1.0, 9.0]}, {"deviations": "empty short"}),
    Case(
        rubric.bootstrap_interval,
        {"scores": [0.5, 0.7, None], "share": 0.95, "draws": 20, "seed": 0},
        {"scores": "empty short item_none", "seed": "none nan inf word"},
    ),
    Case(
        rubric.family_deltas,
        {"rows": [("a", "a", 1.0), ("a", "b", 0.5), ("b", "a", 0.5), ("b", "b", 1.0)]},
        {"rows": "empty short"},
    ),
    Case(rubric.points_items, {"rows": [(9, True), (-5, False)]}, {"rows": "empty short"}),
    Case(
        rubric.points_score,
        {"items": [PointsItem(9.0, True), PointsItem(-5.0, False)]},
        {"items": "empty short"},
    ),
    Case(
        rubric.tiered,
        {
            "items": [PointsItem(9.0, True), PointsItem(-5.0, False)],
            "essential_from": 8.0,
            "important_from": 5.0,
        },
        {"items": "empty short"},
    ),
    Case(
        rubric.merge_points,
        {
            "found": [[Point("1", "water boils", "important")]],
            "same": 0.6,
            "alike": lambda a, b: 1.0,
        },
        {"found": "empty short", "alike": "none word"},
    ),
    Case(rubric.audit_points, {"findings": {"right": True}}, {"findings": "empty"}),
    # Judges: skills and GenRM
    Case(
        skill_rm.capped_score,
        {"satisfied": 3, "total": 4, "flags": ["wrong_language"]},
        {"satisfied": "none nan inf word", "total": "none nan inf word", "flags": "empty short"},
    ),
    Case(
        skill_rm.decide_pair,
        {"items": [PairItem(Tier.HARD, "a", 1, "saw")]},
        {"items": "empty short"},
    ),
    Case(genrm.read_principles, {"text": "Principle 1 (60%): clear"}, {"text": "empty word"}),
    Case(
        policy.gae,
        {"rewards": MASK, "values": LOGP, "mask": MASK, "gamma": 0.99, "lam": 0.95},
    ),
    Case(
        policy.terminal_rewards,
        {"rewards": [1.0, 0.0], "mask": MASK, "penalties": MASK},
        {"penalties": OPTIONAL},
    ),
    Case(
        policy.value_loss,
        {"values": LOGP, "old_values": MASK, "returns": LOGP, "mask": MASK, "clip": 0.2},
        {"clip": OPTIONAL},
    ),
    # Judges: Proxy-GRM
    Case(proxy_grm.format_ok, {"texts": [BLOCKS, "no"]}, {"texts": f"{PARSED} short"}),
    Case(
        proxy_grm.accuracy_reward,
        {"cases": [(BLOCKS, 1), (BLOCKS, 2)]},
        {"cases": "empty short"},
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
        {"mode": "additive", "weights": [1.0, 1.0, 0.5], "acc": 1.0, "prox": -1.0},
        {"prox": OPTIONAL},
    ),
    Case(
        proxy_grm.compose_variants,
        {"variant_ids": [0, 3]},
        {"variant_ids": "empty short"},
    ),
    Case(
        proxy_grm.variant_score,
        {"variant": 3, "acc": 1.0, "prox": -1.0},
        {"prox": OPTIONAL},
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
    # Reward models: DIR
    Case(
        models.club_categorical,
        {"logits": LOGP, "labels": [1, 0], "past_labels": [0, 1], "clamp": "none"},
        {"past_labels": "none empty short"},
    ),
    Case(models.bias_head_loss, {"logits": LOGP, "labels": [1, 0]}),
    Case(
        models.total_loss,
        {
            "h_chosen": LOGP,
            "h_rejected": MASK,
            "r_chosen": [1.0, 0.5],
            "r_rejected": [0.0, 0.2],
            "bias_label": [1, 0],
            "lam": 1.0,
            "representation": "difference",
            "head": {"W": [[1.0, 0.0], [0.0, 1.0]], "b": [0.0, 0.1]},
            "clamp": "none",
        },
    ),
    Case(
        models.length_label,
        {"len_chosen": [5, 3], "len_rejected": [3, 4], "ties": "zero"},
    ),
    Case(
        models.length_penalty,
        {"rewards": [1.0, 0.5], "lengths": [100, 20], "alpha": 0.001},
    ),
    Case(models.pearson_penalty, {"rewards": [1.0, 0.5], "attribute": [3.0, 1.0]}),
    Case(
        models.product_of_experts_loss,
        {
            "r_chosen": [1.0, 0.5],
            "r_rejected": [0.0, 0.2],
            "bias_chosen": [1.0, 0.5],
            "bias_rejected": [0.0, 0.2],
        },
    ),
    Case(models.dual_lambda, {"lam": 1.0, "auc": 0.7, "target": 0.55, "rate": 0.1, "most": 10.0}),
    Case(
        models.probe_auc,
        {
            "features": f64([[0.0], [1.0], [0.2], [1.2]]),
            "labels": [0, 1, 0, 1],
            "folds": 2,
            "ridge": 1.0,
            "seed": 0,
        },
        {"labels": "item_none"},
    ),
    Case(
        models.grouped_pair_metrics,
        {"r_chosen": [1.0, 0.5], "r_rejected": [0.0, 0.7], "group": [0, 1]},
    ),
    Case(
        models.accuracy_by_group,
        {"predictions": [1, 0], "labels": [1, 1], "groups": ["a", "b"]},
        {"groups": "item_number"},
    ),
    Case(
        models.rmbench_metrics,
        {
            "domains": ["chat"] * 2,
            "scores_chosen_rejected": [(1.0, 0.0), (2.0, 2.0), (3.0, 1.0), (0.0, 1.0)],
            "styles_per_sample": 2,
        },
    ),
    Case(
        models.attribute_correlation,
        {"rewards": [1.0, 0.5], "attribute": [3.0, 1.0]},
    ),
    Case(models.auc, {"scores": [0.1, 0.9], "labels": [0, 1]}),
    Case(
        models.step_value,
        {"probabilities": [0.1, 0.9], "aggregate": "min"},
        {"probabilities": "short"},
    ),
    # Bench
    Case(bench.wilson, {"successes": 3, "count": 4}),
    Case(bench.mean_estimate, {"values": [0.0, 1.0]}, {"values": "short"}),
    Case(bench.signed_estimate, {"values": [0.1, -0.2], "rounds": 40}, {"values": "short"}),
    Case(bench.t_estimate, {"values": [0.1, 0.2, 0.4]}, {"values": "short"}),
    Case(bench.paired_difference, {"before": [0.0, 1.0], "after": [1.0, 1.0]}),
    Case(bench.paired_test, {"marks_a": [0.0, 1.0], "marks_b": [1.0, 1.0]}),
    Case(
        prompt_search.compare_marks,
        {"before": [0.0, 1.0], "after": [1.0, 1.0]},
        {"before": "item_none", "after": "item_none"},
    ),
    Case(
        prompt_search.prompt_diff,
        {"before": "a", "after": "b"},
        {"before": "empty word", "after": "empty word"},
    ),
    Case(prompt_search.system_prompt, {"tasks": [ASKED_TASK]}, {"tasks": "empty short"}),
    Case(
        prompt_search.with_system_prompt,
        {"task": ASKED_TASK, "prompt": "Be brief."},
        {"prompt": "empty word"},
    ),
    Case(bench.mcnemar, {"only_first": 1, "only_second": 3}),
    Case(bench.sign_flip, {"differences": [0.1, -0.2]}, {"differences": "empty short"}),
    Case(bench.p_text, {"p_value": 0.03}),
    Case(
        bench.cohen_kappa,
        {"first": ["a", "b"], "second": ["a", "a"]},
        {"first": "item_number", "second": "item_number"},
    ),
    Case(bench.fleiss_kappa, {"marks": [["a", "b"], ["a", "a"]]}, {"marks": "empty short"}),
    Case(
        bench.choice_of,
        {"values": [0.1, 0.9]},
        {"values": "nan inf empty short item_none"},
    ),
    Case(
        bench.preference_rows,
        {"items": [Item("a", message("p"), responses_of("a", ["x", "y"]), (1,))]},
        {"items": "empty short"},
    ),
    Case(
        bench.solution_rows,
        {
            "items": [
                Item(
                    "a",
                    message("p"),
                    responses_of("a", ["x"]),
                    hidden={"steps": ["x"], "first_wrong": None},
                )
            ]
        },
        {"items": "empty short"},
    ),
    Case(
        bench.first_flagged,
        {"scores": [0.9, 0.2], "threshold": 0.5},
        {"scores": "empty short"},
    ),
    Case(bench.labels_of, {"first_wrong": 1, "count": 3}, {"first_wrong": "none"}),
    Case(bench.halves, {"keys": ["a", "b"]}, {"keys": "empty short"}),
    Case(
        bench.first_wrong_f1,
        {"scores": [[0.9, 0.2], [0.8]], "first_wrong": [1, None], "threshold": 0.5},
        {"first_wrong": "item_none"},
    ),
    Case(
        bench.best_threshold,
        {"scores": [[0.9, 0.2], [0.8]], "first_wrong": [1, None]},
        {"first_wrong": "item_none"},
    ),
    Case(
        bench.calibrated_f1,
        {"scores": [[0.9, 0.2], [0.8]], "first_wrong": [1, None], "parts": [0, 1]},
        {"first_wrong": "item_none"},
    ),
    Case(bench.accuracy, {"judged": JUDGED}, {"judged": "empty short"}),
    Case(bench.by_subset, {"judged": JUDGED}, {"judged": "empty short"}),
    Case(bench.by_style, {"judged": JUDGED}, {"judged": "empty short"}),
    Case(
        bench.flips,
        {"forward": JUDGED, "backward": JUDGED},
        {"forward": "empty short", "backward": "empty short"},
    ),
    Case(
        bench.agreement,
        {"judged": JUDGED, "people": {"a": [(0,), (1,)], "b": [(0,), (0,)]}},
        {"judged": "empty short", "people": "empty"},
    ),
    Case(loaders.rubric_score, {"points": [5.0, -3.0], "met": [True, False]}),
    Case(
        search.reciprocal_rank_fusion,
        {"rankings": [["a", "b"], ["b"]], "constant": 60.0},
        {"rankings": "empty short"},
    ),
    Case(
        search.shown_passages,
        {"passages": [search.Passage("a", "one"), search.Passage("b", "two")], "characters": 20},
        {"passages": "empty short"},
    ),
    Case(search.tokens, {"text": "two words"}, {"text": "empty word"}),
    Case(
        bench.detection,
        {"scores": [0.2, 1.0], "faithful": [False, True], "threshold": 0.5},
        {"scores": "item_none"},
    ),
    # Claims that are checked blind
    Case(march.parse_claims, {"text": "- Question: a? [Answer: 1]"}, {"text": "empty word"}),
    Case(
        march.parse_checks,
        {"text": "1. a [Answer: 1]", "count": 2},
        {"text": "empty word", "count": OPTIONAL},
    ),
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
        {
            "a": "3",
            "b": "3",
            "matcher": "numeric",
            "relative": 1e-3,
            "absolute": 1e-9,
            "threshold": 0.8,
        },
        {"a": "empty word", "b": "empty word"},
    ),
    Case(
        march.fact_reward,
        {
            "claims": [("a?", "3"), ("b?", "4")],
            "checks": [{1: "3"}, {1: "3"}],
            "mode": "err",
            "matcher": "numeric",
            "right": 0.0,
            "wrong": -1.0,
            "min_claims": 3,
            "short_penalty": -0.5,
            "refusals": "drop",
        },
        {"claims": "empty short", "checks": "short word"},
    ),
    Case(
        march.checker_rewards,
        {"agreement": [[1, -1], [1, 1]], "votes": [2, 0]},
        {"agreement": "short", "votes": OPTIONAL},
    ),
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
    ),
    *(
        Case(function, {"step_scores": [1.0, -1.0]}, {"step_scores": "empty short"})
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
    ),
    Case(
        evpv.best_of_k,
        {"candidates": [0.5, 0.2], "correct": [True, False], "tie_rule": "expected"},
        {"candidates": "item_none", "correct": "item_none"},
    ),
    Case(evpv.macro_f1, {"gold": [1, -1, 0], "pred": [1, 1, -1]}, {"pred": "item_none"}),
    *(
        Case(
            function,
            {"constraints": ["AB = 10", "CD = 5"], "ratio": 0.5, "seed": 1, "sample_id": "a"},
            {"constraints": "empty short", "sample_id": "empty word"},
        )
        for function in (evpv.corrupt_drop, evpv.corrupt_flip)
    ),
    Case(
        evpv.response_reliability,
        {"supports": [1.0, 0.5], "rule": "mean"},
        {"supports": "empty short item_none"},
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
    Case(
        atp_bench.check_calls,
        {
            "text": PLANNED,
            "tools": dict(atp_bench.TOOLS),
            "n_context_images": 1,
            "syntax": "tags",
            "fenced": "refuse",
        },
        {"text": "empty word", "n_context_images": OPTIONAL},
    ),
    Case(
        atp_bench.validate_call,
        {"tool": "search", "args": {"query": "a"}, "required": ["query"], "n_context_images": 1},
        {
            "tool": "empty word",
            "args": "none empty",
            "required": "empty short",
            "n_context_images": OPTIONAL,
        },
    ),
    Case(
        atp_bench.render_call,
        {"tool": "search", "args": {"query": "a"}, "syntax": "tags"},
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
        {"quality_0_1": 0.5, "plan_f1": 0.5, "w_quality": 0.5},
        {"quality_0_1": OPTIONAL, "plan_f1": OPTIONAL},
    ),
    # Search self-play
    Case(ssp.extract_answer, {"text": "<answer>a</answer>"}, {"text": "empty word"}),
    Case(ssp.parse_queries, {"text": "a"}, {"text": "empty word"}),
    Case(ssp.read_answer, {"text": "Answer: a"}, {"text": "empty word"}),
    Case(
        ssp.solver_score,
        {"text": "<answer>a1</answer>", "golds": "a1", "judge": None},
        {"text": "empty word", "golds": ALIAS},
    ),
    Case(
        ssp.rule_filter,
        {"trajectory": "<question>b</question>", "answer": "a1", "rules": RULES, "tag": "question"},
        {"trajectory": "empty word", "answer": ALIAS, "rules": OPTIONAL, "tag": "empty word"},
    ),
    Case(
        ssp.success_rate,
        {"solver_rewards": [1.0, 0.0]},
        {"solver_rewards": "empty short item_none"},
    ),
    Case(
        ssp.proposer_reward,
        {
            "solver_rewards": [1.0, 0.0],
            "reward_type": "1-acc",
            "valid": True,
            "invalid_reward": 0.0,
            "left": 0.0,
            "right": 1.0,
        },
        {"solver_rewards": "short item_none"},
    ),
    Case(ssp.dynamic_filter, {"scores": [1.0, 0.0], "groups": [0, 0], "solver_n": 2}),
    Case(
        ssp.noise_blocks,
        {"own": ["a"], "others": [["b"], ["c"]], "count": 1, "seed": 0},
        {"own": "empty short", "others": "empty short"},
    ),
    Case(
        ssp.shuffled_documents,
        {"own": ["a"], "noise": [["b"]], "seed": 0},
        {"own": "empty short", "noise": "empty short"},
    ),
    Case(
        ssp.is_unique,
        {"listed": ["a1"], "answer": "a1"},
        {"listed": "empty short", "answer": ALIAS},
    ),
    Case(
        ssp.question_id,
        {"question": "b", "answer": "a1"},
        {"question": "empty word", "answer": ALIAS},
    ),
    Case(
        ssp.answer_overlap,
        {"training": ["a1"], "evaluation": ["a1"], "examples": 20},
        {"training": "empty short item_number", "evaluation": "empty short item_number"},
    ),
    # Audio tokenizer
    Case(audio_tokenizer.channel_normalise, {"z": LOGP, "eps": 1e-5}, {"z": "short"}),
    Case(audio_tokenizer.perturb_latents, {"zn": LOGP, "alpha": 0.5, "noise": LOGP}),
    Case(
        audio_tokenizer.rq_codes,
        {"x": LOGP, "projection": LOGP.T.contiguous(), "codebook": LOGP[:, :2].contiguous()},
        {"x": "short", "codebook": "short"},
    ),
    Case(
        audio_tokenizer.rq_mtp_loss,
        {"logits": torch.stack([LOGP, LOGP]), "codes": [1, 0], "valid": [1, 1]},
        {"logits": "short", "valid": "none"},
    ),
    Case(audio_tokenizer.patchify_latents, {"z": LOGP, "P": 2}, {"z": "short"}),
    Case(audio_tokenizer.flow_pair, {"noise": LOGP, "data": LOGP, "tau": f64([0.2, 0.5])}),
    Case(audio_tokenizer.guided_velocity, {"v_cond": LOGP, "v_uncond": LOGP, "scale": 2.0}),
    Case(
        audio_tokenizer.euler_sample,
        {"velocity": lambda x, tau: -x, "noise": LOGP, "steps": 3},
        {"noise": "short"},
    ),
    Case(
        audio_tokenizer.si_sdr,
        {"estimate": f64([1.0, -2.0, 0.5]), "reference": f64([0.5, -1.0, 0.7])},
    ),
    Case(audio_tokenizer.log_spectral_distance, {"a": LOGP.abs(), "b": LOGP.abs(), "eps": 1e-5}),
    Case(
        audio_tokenizer.frechet_distance,
        {
            "mu1": f64([0.0, 1.0]),
            "cov1": f64([[1.0, 0.2], [0.2, 2.0]]),
            "mu2": f64([1.0, 1.0]),
            "cov2": f64([[2.0, 0.0], [0.0, 1.0]]),
        },
    ),
    Case(
        audio_tokenizer.multi_scale_spectral_loss,
        {
            "estimate": WAVES,
            "reference": WAVES / 2,
            "windows": [8, 16],
            "lengths": [20, 30],
            "eps": 1e-5,
        },
        {"windows": "short", "lengths": "none"},
    ),
    Case(
        audio_tokenizer.codec_loss,
        {
            "estimate": WAVES,
            "reference": WAVES / 2,
            "sampling_rate": 8000,
            "lengths": [20, 30],
            "windows": [8, 16],
            "mel_weight": 15.0,
            "wave_weight": 10.0,
        },
        {"windows": "short", "lengths": "none"},
    ),
    # Masked diffusion
    Case(
        masked_diffusion.mirror_masks,
        {"u": f64([[0.1, 0.9]]), "t": [0.5], "eligible": [[1, 1]], "eps": 1e-3},
    ),
    Case(
        masked_diffusion.mdm_loss,
        {
            "token_nll": LOGP.abs(),
            "mask": MASK,
            "p": f64([0.5, 0.6]),
            "eligible_count": [2, 2],
            "weight": [1.0, 1.0],
        },
        {"weight": "none"},
    ),
    Case(masked_diffusion.isad_mask_prob, {"p": [0.5], "is_delimiter": [[1, 0]], "delta": 0.2}),
    Case(masked_diffusion.optimal_t_density, {"g": [1.0, 2.0], "v": [1.0, 1.0], "t_grid": ENDS}),
    Case(
        masked_diffusion.sampler_variance,
        {"p": [1.0, 1.0], "g": [1.0, 2.0], "v": [1.0, 1.0], "t_grid": ENDS},
    ),
    Case(
        masked_diffusion.epr_density,
        {"t": ENDS, **dict.fromkeys(("a", "b", "A", "r", "q", "m"), 1.0), "kappa": 0.5},
        {"t": "short"},
    ),
    Case(
        masked_diffusion.fit_epr,
        {
            "t_grid": [0.1, 0.2, 0.4, 0.5, 0.7, 0.9],
            "w": [1.0, 1.1, 1.2, 1.1, 1.4, 1.6],
            "n_starts": 2,
            "mix_uniform": 0.1,
            "seed": 0,
        },
        {"w": "nan item_none"},
    ),
    Case(
        masked_diffusion.sample_t,
        {
            "t_grid": ENDS,
            "density": [1.0, 2.0],
            "u": [0.2, 0.4],
            "max_weight": 100.0,
            "cells": "linear",
        },
        {"u": "short"},
    ),
    Case(masked_diffusion.stratum_counts, {"n": 10, "rounding": "ceil"}),
    Case(
        masked_diffusion.probe_moments,
        {
            "losses": f64([[[1.0, 2.0]], [[1.0, 1.0]]]),
            "loss_max": 10.0,
            "moment": "second",
            "chances": [[0.5], [1.0]],
        },
        {"losses": "nan", "loss_max": "none", "chances": "none"},
    ),
    Case(
        masked_diffusion.decompose_variance,
        {"losses": f64([[[1.0, 2.0]], [[1.0, 1.0]]])},
        {"losses": "short"},
    ),
    Case(
        masked_diffusion.ema_control_variate,
        {
            "losses": [1.0, 2.0],
            "t": [0.1, 0.9],
            "baseline": [0.0, 0.0],
            "lr": 0.1,
            "coefficient": 1.0,
        },
        {"baseline": "short"},
    ),
    Case(
        masked_diffusion.build_noise,
        {
            "rates": "p_pots",
            "masks": "independent",
            "passes": 1,
            "strata": "ceil",
            "delimiters": [3],
            "delta": 0.2,
            "delimiter_weight": "row",
            "eps": 1e-3,
            "control": "none",
            "options": {"mix_uniform": 0.1},
        },
        {"delimiters": "empty short", "options": "none empty"},
    ),
    Case(masked_diffusion.evaluation_uniforms, {"n": 4, "length": 3, "seed": 0}),
    Case(
        masked_diffusion.collate,
        {"rows": [{"input_ids": [1, 2], "prompt_length": 1}], "max_length": 8, "pad_id": 0},
    ),
    Case(masked_diffusion.is_syntax, {"token": "{", "format": "json"}, {"token": "empty word"}),
    Case(
        masked_diffusion.syntax_eligible,
        {"tokens": ["{", "a"], "format": "json"},
        {"tokens": "word empty short"},
    ),
    Case(
        masked_diffusion.template_tokens,
        {"answers": [[1, 2], [2, 3]], "share": 0.9},
        {"answers": "short"},
    ),
    # Images and sounds
    Case(media.media_type_of, {"data": PNG}),
    Case(media.image_info, {"source": PNG}),
    Case(media.open_image, {"source": PNG}),
    Case(media.sound_info, {"source": WAV}),
    Case(media.read_sound, {"source": WAV, "rate": 8000}, {"rate": "none"}),
    Case(
        media.stream_sound,
        {"source": WAV, "seconds": 1.0, "rate": 8000},
        {"rate": "none"},
    ),
    Case(media.sound_picture, {"source": WAV, "columns": 2, "bands": 4}),
    Case(
        media.resample,
        {"samples": [0.0, 0.5], "rate": 8000, "to": 16000},
        {"samples": "short"},
    ),
    Case(
        media.encode_sound,
        {"samples": [0.0, 0.5], "rate": 8000, "kind": "wav", "bits": 16},
        {"samples": "short"},
    ),
    Case(
        media.write_sound,
        {
            "path": f"{tempfile.gettempdir()}/burnish-public-case.wav",
            "samples": [0.0, 0.5],
            "rate": 8000,
            "bits": 16,
        },
        {"samples": "short"},
    ),
    # Long speech
    Case(
        long_speech.resolve_timeline,
        {"sentences": [{"speaker": "A", "duration": 1.0}], "interrupt_tail": 0.15},
        {"sentences": "empty short"},
    ),
    Case(
        long_speech.overlap_statistics,
        {"timeline": [{"start": 0.0, "end": 1.0, "cut": False}]},
        {"timeline": "empty short"},
    ),
    Case(
        long_speech.noise_gain,
        {"speech": [1.0, 0.5], "active": [1, 0], "noise": f64([0.1, -0.1, 0.1]), "snr_db": 10.0},
        {"noise": "short"},
    ),
    Case(
        long_speech.dimension_dropout,
        {"dims": ["tone", "pace"], "u": [0.1, 0.9], "p": 0.3, "protected": ["pace"]},
        {"protected": "empty short"},
    ),
    Case(
        long_speech.arc_values,
        {"waypoints": [[0.0, 0.2], [1.0, 0.8]], "n": 3},
        {"waypoints": "short"},
    ),
    Case(long_speech.arc_score, {"requested": [0.1, 0.5], "measured": [1.0, 2.0]}),
    Case(
        long_speech.semitones,
        {"f0": [110.0, 220.0], "reference": 110.0},
        {"f0": "empty short"},
    ),
    Case(long_speech.equal_power_fades, {"n": 4}),
    Case(
        long_speech.label_retention,
        {
            "clips": [{"snr": 30.0, "overlap": 0.0, "speakers": 1}],
            "filter_rule": {"min_snr": 20.0, "max_overlap": 0.05, "speakers": 1},
        },
        {"clips": "empty short", "filter_rule": "none empty"},
    ),
    Case(
        long_speech.plan_chunks,
        {"frames": [4, 5], "max_frames": 6, "context": 2},
        {"frames": "empty short"},
    ),
    # Visual latents
    Case(
        visual_latent.fit_pca,
        {"embeddings": f64([[1.0, 2.0], [3.0, 1.0], [0.0, 4.0]]), "k": 2},
        {"embeddings": "short", "k": "none"},
    ),
    Case(
        visual_latent.pca_rank,
        {"eigenvalues": [2.0, 1.0], "target": 0.9},
        {"eigenvalues": "short"},
    ),
    Case(visual_latent.reconstruct_latents, {"coeffs": f64([[2.0]]), **PLANE}),
    Case(visual_latent.project_latents, {"v": f64([[2.0, 1.0]]), **PLANE}),
    Case(
        visual_latent.whiten_latents,
        {"v": f64([[2.0, 1.0]]), **PLANE, "eigenvalues": [2.0]},
    ),
    Case(visual_latent.norm_match, {"h": f64([[2.0, 1.0], [1.0, 1.0]]), "norm": [1.0, 2.0]}),
    Case(
        visual_latent.norm_ema,
        {"value": 1.0, "norms": [2.0, 3.0], "decay": 0.9},
        {"value": "none", "norms": "short empty"},
    ),
    Case(
        visual_latent.norm_ratio,
        {"hidden": f64([[2.0, 1.0], [1.0, 1.0]]), "inputs": f64([[1.0, 1.0], [1.0, 0.0]])},
        {"hidden": "short", "inputs": "short"},
    ),
    Case(
        visual_latent.use_latent,
        {"correct": [[1, 0], [1, 1]], "tau": 0.5},
        {"correct": "short empty item_none"},
    ),
    Case(
        visual_latent.pool_tokens,
        {"tokens": f64([[1.0], [2.0], [3.0], [4.0]]), "grid": (2, 2), "K": 2},
    ),
    Case(
        visual_latent.latent_loss,
        {"pred": f64([[1.0, 2.0]] * 2), "target": f64([[1.0, 1.0]] * 2), "mask": [1, 1]},
        {"mask": "none"},
    ),
    Case(
        visual_latent.cosine_loss,
        {"pred": f64([[1.0, 2.0]] * 2), "target": f64([[1.0, 1.0]] * 2), "mask": [1, 1]},
        {"mask": "none"},
    ),
    Case(
        speech.f0_track,
        {"samples": f64([0.1, -0.1] * 400), "sample_rate": 8000},
        {"samples": "short"},
    ),
    Case(
        speech.level_db,
        {"samples": f64([0.1, -0.1] * 400), "sample_rate": 8000},
        {"samples": "empty short"},
    ),
    Case(
        speech.measure_speech,
        {"samples": f64([0.1, -0.1] * 400), "sample_rate": 8000, "text": "Yes."},
        {"samples": "empty short", "text": "empty word"},
    ),
    Case(speech.syllables, {"text": "Yes."}, {"text": "empty word"}),
    Case(audio_tokenizer.spelled, {"text": "Room 21"}, {"text": "empty word"}),
    Case(
        speech.read_caption,
        {"caption": "very slow", "dimension": "volume"},
        {"caption": "empty word", "dimension": "empty"},
    ),
    *(
        Case(function, {"scene": long_speech.read_scene(SCRIPT)})
        for function in (speech.resolve_manners,)
    ),
    Case(
        speech.turn_taking, {"turns": [("A", 0.0, 1.0), ("B", 0.5, 2.0)]}, {"turns": "empty short"}
    ),
    Case(
        speech.meeting_distance,
        {"turns": [("A", 0.0, 1.0), ("B", 0.5, 2.0)]},
        {"turns": "empty short"},
    ),
    Case(
        speech.draft_scene,
        {"text": "Ann: Hello.", "name": "text"},
        {"text": "word", "name": "empty word"},
    ),
    Case(
        speech.plan_scene,
        {"scene": long_speech.read_scene(SCRIPT), "seed": 1},
    ),
    Case(
        speech.word_errors,
        {"said": "a b", "heard": "a"},
        {"said": "empty word", "heard": "empty word"},
    ),
    Case(
        speech.open_slots,
        {"scene": long_speech.read_scene(SCRIPT), "dimensions": ["tone", "pace"]},
        {"dimensions": "empty short"},
    ),
    Case(
        speech.plan_prompt,
        {
            "scene": long_speech.read_scene(SCRIPT),
            "instruction": "End sad.",
            "dimensions": ["tone", "pace"],
        },
        {"instruction": "empty word", "dimensions": "empty short"},
    ),
    Case(
        speech.read_plan,
        {"scene": long_speech.read_scene(SCRIPT), "text": 'sentences[0].pace = "slow"'},
        {"text": "empty"},
    ),
    Case(
        speech.design_voice,
        {
            "description": "an old woman",
            "taken": [speech.design_voice("a man")],
            "engines": ["espeak"],
            "seed": 1,
        },
        {"description": "empty word", "taken": "empty short"},
    ),
    Case(
        long_speech.missing_capabilities,
        {
            "scene": long_speech.read_scene(SCRIPT),
            "manners": [long_speech.Manner()] * len(SCRIPT["sentences"]),
            "engine": long_speech.ToneEngine(),
        },
    ),
    Case(
        visual_latent.parse_response,
        {
            "text": "a <latent/> <parser>b</parser> <answer>c</answer>",
            "pictures": 1,
        },
    ),
    Case(
        visual_latent.answer_of,
        {"text": "It is <answer>c</answer>"},
        {"text": "empty word"},
    ),
    Case(long_speech.read_scene, {"document": SCRIPT}),
    Case(long_speech.scene_problems, {"document": SCRIPT}, {"document": "empty"}),
    *(
        Case(function, {"scene": long_speech.read_scene(SCRIPT)})
        for function in (
            long_speech.write_scene,
            long_speech.scene_text,
            long_speech.scene_warnings,
            long_speech.planned_captions,
        )
    ),
    Case(long_speech.scene_schema, {}),
    Case(
        long_speech.parse_scene_text,
        {"text": long_speech.scene_text(long_speech.read_scene(SCRIPT))},
    ),
    Case(
        long_speech.drop_dimensions,
        {"scene": long_speech.read_scene(SCRIPT), "u": [0.2], "p": 0.3},
    ),
    Case(
        long_speech.place_sentences,
        {"scene": long_speech.read_scene(SCRIPT), "durations": [1.0]},
    ),
    Case(
        long_speech.room_impulse,
        {"reverb_s": 0.1, "sample_rate": 1000, "seed": 0, "wet_db": -6.0},
    ),
]
