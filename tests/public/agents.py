"""One valid call of every public function of agents, and what it lets pass."""

import burnish
from burnish.agents import policyalign, prompt as prompt_search, ssp, trace2skill
from public.common import Case, f64

ASKED_TASK = burnish.Task("t", (burnish.Message("user", "What is 3 + 4?"),))
ALIAS = "word number"  # an answer is a text or a number
RULES = ssp.Rules()
CASES = [
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
        {"edits": [{"op": "create", "file": "references/a.md"}]},
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
    Case(trace2skill.needed_support, {"count": 60}, shares="tau"),
    Case(trace2skill.choose_skill, {"before": [True, False], "after": [True, True]}),
    Case(
        trace2skill.held_out,
        {"ids": ["a", "b"], "share": 0.5, "seed": 1},
        {"ids": "empty short"},
        shares="share",
    ),
    Case(
        trace2skill.skill_problems,
        {"files": {"SKILL.md": "# A"}, "name": "a"},
        {"files": "empty", "name": "empty word"},
    ),
    Case(
        policyalign.aggregate,
        {"token_losses": f64([1.0, 2.0]), "mask": [1, 0], "tokens": 3},
        signed="token_losses",
    ),
    Case(policyalign.clauses_of, {"policy": "- Law: none."}, {"policy": "word"}),
    Case(
        policyalign.different,
        {"texts": ["a b", "c"], "known": ["d"]},
        {"texts": "empty short", "known": "empty short"},
        shares="overlap",
    ),
    Case(
        policyalign.parse_policy,
        {"text": "Be kind.", "name": "p"},
        {"text": "word", "name": "empty word", "digest": "empty word"},
    ),
    Case(policyalign.read_guard, {"reply": "Safety: Safe"}, {"reply": "empty word"}),
    Case(policyalign.read_requests, {"reply": '["a"]'}, {"reply": "empty word"}),
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
        {"trajectory": "<question>b</question>", "answer": "a1", "rules": RULES},
        {"trajectory": "empty word", "answer": ALIAS, "tag": "empty word"},
    ),
    Case(
        ssp.success_rate,
        {"solver_rewards": [1.0, 0.0]},
        {"solver_rewards": "empty short item_none"},
        signed="solver_rewards",
    ),
    Case(
        ssp.proposer_reward,
        {"solver_rewards": [1.0, 0.0]},
        {"solver_rewards": "short item_none"},
        signed="solver_rewards invalid_reward left right",
    ),
    Case(
        ssp.dynamic_filter,
        {"scores": [1.0, 0.0], "groups": [0, 0], "solver_n": 2},
        signed="scores groups",
    ),
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
        {"training": ["a1"], "evaluation": ["a1"]},
        {"training": "empty short item_number", "evaluation": "empty short item_number"},
    ),
    Case(
        prompt_search.compare_marks,
        {"before": [0.0, 1.0], "after": [1.0, 1.0]},
        {"before": "item_none", "after": "item_none"},
        signed="before after",
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
]
