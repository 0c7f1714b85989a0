"""One valid call of every public function of bench, and what it lets pass."""

from burnish import bench
from burnish.bench import loaders
from burnish.bench.items import Item, Judged, message, responses_of
from public.common import Case

JUDGED = [
    Judged(name, "judge", choice=(0,), best=(place,), info={"right_style": "1", "wrong_style": "0"})
    for place, name in enumerate("ab")
]
CASES = [
    # Bench
    Case(bench.wilson, {"successes": 3, "count": 4}),
    Case(bench.mean_estimate, {"values": [0.0, 1.0]}, {"values": "short"}, signed="values"),
    Case(
        bench.signed_estimate,
        {"values": [0.1, -0.2], "rounds": 40},
        {"values": "short"},
        signed="values",
    ),
    Case(bench.t_estimate, {"values": [0.1, 0.2, 0.4]}, {"values": "short"}, signed="values"),
    Case(
        bench.paired_difference, {"before": [0.0, 1.0], "after": [1.0, 1.0]}, signed="before after"
    ),
    Case(
        bench.paired_test, {"marks_a": [0.0, 1.0], "marks_b": [1.0, 1.0]}, signed="marks_a marks_b"
    ),
    Case(bench.mcnemar, {"only_first": 1, "only_second": 3}),
    Case(
        bench.sign_flip,
        {"differences": [0.1, -0.2]},
        {"differences": "empty short"},
        signed="differences",
    ),
    Case(bench.p_text, {"p_value": 0.03}, shares="p_value"),
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
        signed="values",
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
        {"scores": [0.9, 0.2]},
        {"scores": "empty short"},
        signed="scores threshold",
    ),
    Case(bench.labels_of, {"first_wrong": 1, "count": 3}, {"first_wrong": "none"}),
    Case(bench.halves, {"keys": ["a", "b"]}, {"keys": "empty short"}),
    Case(
        bench.first_wrong_f1,
        {"scores": [[0.9, 0.2], [0.8]], "first_wrong": [1, None]},
        {"first_wrong": "item_none"},
        signed="threshold",
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
        signed="parts",
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
    Case(
        bench.detection,
        {"scores": [0.2, 1.0], "faithful": [False, True]},
        {"scores": "item_none"},
        signed="scores threshold",
    ),
    Case(loaders.rubric_score, {"points": [5.0, -3.0], "met": [True, False]}, signed="points"),
]
