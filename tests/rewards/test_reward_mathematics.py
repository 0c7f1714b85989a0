"""Mathematics as mathematics, and a corpus of answers made to hang or to crash a checker."""

import threading
import time
from pathlib import Path

import anyio
import pytest
from reward_cases import a_task, answers, score, statuses, values

from burnish.rewards import Mathematics, MathematicsConfig, Numeric, NumericConfig, checked
from burnish.rewards.checks import mathematics
from burnish.rewards.pool import WALL_PER_S, default_pool

DATA = Path(__file__).parents[2] / ".." / "shared" / "data"
CHECK = Mathematics(MathematicsConfig(timeout_s=60))
"""With a limit that no honest answer meets, however slow the machine."""


@pytest.mark.parametrize(
    ("answer", "right", "wrong"),
    [
        ("\\frac{1}{2}", "\\boxed{\\sqrt{\\frac14}}", "\\boxed{\\frac{2}{3}}"),
        ("x^2+2x+1", "\\boxed{(x+1)^2}", "\\boxed{(x+2)^2}"),
        ("2\\sqrt{3}", "thus $\\sqrt{12}$", "thus $\\sqrt{13}$"),
        ("(1, 2)", "\\boxed{(1,2)}", "\\boxed{(2,1)}"),
        ("\\{1,2,3\\}", "\\boxed{\\{3,2,1\\}}", "\\boxed{\\{3,2\\}}"),
        ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}",) * 2 + ("\\boxed{7}",),
        ("12", "7 + 5 = 12", "7 + 5 = 13"),
        ("3.5", "\\boxed{\\dfrac72}", "\\boxed{3}"),
        ("12", "The answer is not obvious, but 12", "The answer is 3 apples, not 12"),
        ("x+y", "The answer is $y+x$ by symmetry.", "The answer is $y-x$ by symmetry."),
        ("x+y", "<answer>$y+x$</answer>", "<answer>$xy$</answer>"),
        ("90^\\circ", "\\boxed{90}", "\\boxed{91}"),
    ],
)
def test_equal_mathematics_is_equal(answer, right, wrong):
    boxed = (
        right if "\\" not in right or "boxed" in right or "$" in right else f"\\boxed{{{right}}}"
    )
    rewards = score(CHECK, a_task(answer=answer), boxed, wrong)
    assert values(rewards) == [1.0, 0.0]
    assert "reference" in rewards[0].evidence[0].observation


def test_the_cheap_way_never_asks_a_child(monkeypatch):
    def no_pool():
        raise AssertionError("a child was asked")

    monkeypatch.setattr("burnish.rewards.checks.base.default_pool", no_pool)
    cheap = Mathematics(MathematicsConfig())
    rewards = score(
        cheap, a_task(answer="#### 42"), "\\boxed{42}", "it is 42.0", "The answer is 41",
        "\\boxed{}",
    )  # fmt: skip
    assert values(rewards) == [1.0, 1.0, 0.0, 0.0]


def test_no_answer_and_no_reference():
    strict = Mathematics(MathematicsConfig(where="boxed"))
    assert values(score(strict, a_task(answer="x"), "x")) == [0.0]
    assert statuses(score(CHECK, a_task(), "x")) == ["abstain"]


ROWS = "\\\\".join("&".join("9^{9^9}" for _ in range(15)) for _ in range(15))
HOSTILE = {
    "tower": "\\boxed{9^{9^{9^{9}}}}",
    "million digits": "\\boxed{" + "9" * 1_000_000 + "}",
    "bare million digits": "9" * 1_000_000,
    "factorials": "\\boxed{((((9!)!)!)!)!}",
    "nested braces": "\\boxed{" + "{" * 900 + "1" + "}" * 900 + "}",
    "open braces": "\\boxed{" * 200_000,
    "matrix": "\\boxed{\\begin{pmatrix}" + ROWS + "\\end{pmatrix}}",
    "ten megabytes": "x = " * 2_500_000,
    "dollars": "$" * 1_000_000,
    "sum": "\\boxed{\\sum_{k=1}^{10^9} k!}",
    "continued fraction": "\\boxed{" + "\\frac{1}{1+" * 60 + "2" + "}" * 60 + "}",
}
BOUND_S = 0.4
"""Seconds of computing: an honest answer here needs 0.03."""


@pytest.mark.parametrize(
    ("gold", "right", "wrong"),
    [
        ("3/2", ["1\\frac{1}{2}", "1 1/2", "1.5", "1\\,\\frac12"], ["11/2", "1\\frac12 1"]),
        ("11/2", ["5\\frac12"], ["1\\frac{1}{2}", "1 1/2", "1\\ 1/2"]),
        ("12", ["12"], ["1 2", "1\\,2"]),
        ("1\\frac{4}{5}", ["9/5", "1.8", "\\frac{9}{5}"], ["14/5", "0.8"]),
        ("12\\,000", ["12000", "12,000"], ["12"]),
    ],
)
def test_mixed_numbers_are_sums_and_blanks_between_digits_count(gold, right, wrong):
    boxes = [f"\\boxed{{{text}}}" for text in right + wrong]
    rewards = score(CHECK, a_task(answer=gold), *boxes)
    assert values(rewards) == [1.0] * len(right) + [0.0] * len(wrong)


def test_one_good_answer_among_towers_is_graded():
    """Each tower costs a child its life; the last answer is still there, and so is its reward."""
    check = Mathematics(MathematicsConfig(timeout_s=BOUND_S))
    # One more than there are children: every child is lost, and one of them twice.
    towers = [f"\\boxed{{9^{{9^{{9^{{{n + 9}}}}}}}}}" for n in range(default_pool().size + 1)]
    rewards = score(check, a_task(answer="\\frac{1}{2}"), *towers, "\\boxed{\\sqrt{\\frac14}}")
    assert statuses(rewards[:-1]) == ["timeout"] * len(towers)
    assert values(rewards[-1:]) == [1.0]


def test_a_deadline_costs_only_what_is_not_finished():
    check = Mathematics(MathematicsConfig(timeout_s=600))
    good = ["\\boxed{\\sqrt{\\frac14}}", "\\boxed{\\sqrt{\\frac19}}"]
    towers = [f"\\boxed{{9^{{9^{{9^{{{n}}}}}}}}}" for n in range(9, 12)]

    async def main(deadline_s):
        task = a_task(answer="\\frac{1}{2}")
        return await checked(check, task, answers(*good, *towers), deadline_s=deadline_s)

    score(check, a_task(answer="\\frac{1}{2}"), *good)  # a child that is warm
    for deadline_s in (1, 10, 100):  # a slow machine needs a longer one to finish the good ones
        rewards = anyio.run(main, deadline_s)
        if statuses(rewards[:2]) == ["ok", "ok"]:
            break
    assert values(rewards) == [1.0, 0.0, None, None, None]
    assert statuses(rewards[2:]) == ["timeout"] * 3
    started = time.monotonic()
    assert values(score(check, a_task(answer="\\frac{1}{2}"), good[0])) == [1.0]
    assert time.monotonic() - started < 300, "the next group waited for towers nobody wants"


def test_a_long_line_is_cut_outside_its_formulas():
    prose = "so it goes " * 1500
    assert mathematics._tail(f"{prose} so $x+y$").endswith("so $x+y$")
    formula = "$" + "x + " * 4000 + "y$ thus $z$"
    assert mathematics._tail(formula) == " thus $z$"
    rewards = score(CHECK, a_task(answer="\\frac{1}{2}"), f"{prose} so $\\sqrt{{\\frac14}}$")
    assert values(rewards) == [1.0]


def test_hostile_answers_cannot_hang_or_zero_their_neighbours():
    """Graded from a thread that is not the main one, as a trainer would."""
    check = Mathematics(MathematicsConfig(timeout_s=BOUND_S))
    default_pool().run(
        check.child, [{"answer": "1", "golds": ["1"], "explicit": True}], timeout_s=60
    )
    children = len(default_pool().pids())
    texts = [text for bad in HOSTILE.values() for text in (bad, "\\boxed{\\sqrt{\\frac14}}")]
    rewards = []

    def grade():
        rewards.extend(anyio.run(checked, check, a_task(answer="\\frac{1}{2}"), answers(*texts)))

    started = time.monotonic()
    thread = threading.Thread(target=grade)
    thread.start()
    thread.join(timeout=600)
    wall = time.monotonic() - started
    assert not thread.is_alive()
    assert values(rewards[1::2]) == [1.0] * len(HOSTILE), "a neighbour was not graded"
    for name, reward in zip(HOSTILE, rewards[::2], strict=True):
        assert reward.value in (None, 0.0), name
        assert reward.status in ("ok", "timeout", "infra_error"), name
    assert rewards[0].status == "timeout"
    killed = sum(reward.status == "timeout" for reward in rewards)
    start_up = 30.0  # on a machine shared with others
    assert wall < killed * (BOUND_S * WALL_PER_S + start_up) + 60
    assert len(default_pool().pids()) >= children


def test_a_cut_text_never_reads_as_a_right_answer():
    deep = "\\frac{1}{" * 300 + "2" + "}" * 300
    rewards = score(CHECK, a_task(answer="1/2"), f"\\boxed{{{deep}}}")
    assert values(rewards) == [0.0]


def test_recorded_solutions_are_graded_as_their_authors_graded_them():
    pandas = pytest.importorskip("pandas")
    file = DATA / "gsm8k" / "model_solutions_test.parquet"
    if not file.is_file():
        pytest.skip("no gsm8k data beside the repository")
    table = pandas.read_parquet(file).head(150)
    systems = ["6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification"]
    for scorer in (Numeric(NumericConfig()), CHECK):
        for _, row in table.iterrows():
            gold = row["ground_truth"].rsplit("A:", 1)[1].strip()
            rewards = score(scorer, a_task(answer=gold), *(row[s]["solution"] for s in systems))
            assert values(rewards) == [float(row[s]["is_correct"]) for s in systems]


def test_competition_solutions_equal_their_own_answers_only():
    pandas = pytest.importorskip("pandas")
    file = DATA / "math" / "dev.parquet"
    if not file.is_file():
        pytest.skip("no math data beside the repository")
    golds = [row["ground_truth"] for row in pandas.read_parquet(file).head(80)["reward_model"]]
    right = wrong = 0
    for gold, other in zip(golds, golds[1:] + golds[:1], strict=True):
        rewards = score(CHECK, a_task(answer=gold), gold, other)
        assert statuses(rewards) == ["ok", "ok"]
        right += rewards[0].value == 1.0
        wrong += rewards[1].value == 0.0
    assert right == len(golds)
    assert wrong >= len(golds) - 3  # neighbours may share an answer
