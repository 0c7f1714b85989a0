"""Which of two judges is right more often: a paired test on the same items.

found = compare_judges(read_results(a), read_results(b))
found.verdict      # "B is right more often by 6.0 points [1.2, 10.8], p = 0.012, over 100 items"
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from burnish.bench.accuracy import Accuracy, accuracy
from burnish.bench.compare import ALPHA, PairedTest, p_text, paired_test
from burnish.bench.items import Judged
from burnish.errors import UserError


@dataclass(frozen=True)
class JudgeComparison:
    """Two judges on the items that both were asked about and that have a label."""

    name_a: str
    name_b: str
    pairs: list[tuple[Judged, Judged]]
    accuracy_a: Accuracy
    accuracy_b: Accuracy
    test: PairedTest
    only_a: list[str]
    """Ids that B was not asked about."""
    only_b: list[str]
    agreed: float
    """Share of the items on which both say the same, a missing verdict included."""

    @property
    def verdict(self) -> str:
        """The outcome in one line."""
        over = f"over {len(self.pairs)} item{'s' * (len(self.pairs) != 1)}"
        value, low, high, _ = self.test.difference
        if self.test.p_value >= ALPHA or value == 0:
            size = f"{100 * value:+.1f} points [{100 * low:.1f}, {100 * high:.1f}]"
            return f"cannot be told apart: B - A is {size}, {p_text(self.test.p_value)}, {over}"
        winner = "B" if value > 0 else "A"
        if value < 0:
            value, low, high = -value, -high, -low
        size = f"{100 * value:.1f} points [{100 * low:.1f}, {100 * high:.1f}]"
        return f"{winner} is right more often by {size}, {p_text(self.test.p_value)}, {over}"


def compare_judges(
    a: Sequence[Judged], b: Sequence[Judged], name_a: str = "A", name_b: str = "B"
) -> JudgeComparison:
    """The paired comparison over all labelled items; a tie or no verdict counts as not right."""
    of_a, of_b = _by_id(a, name_a), _by_id(b, name_b)
    shared = sorted(of_a.keys() & of_b.keys())
    pairs = [(of_a[key], of_b[key]) for key in shared]
    other = next((x.id for x, y in pairs if x.best != y.best), None)
    if other is not None:
        raise UserError(
            f"'{name_a}' and '{name_b}' have different labels for item '{other}'; expected results "
            "on the same data."
        )
    pairs = [(x, y) for x, y in pairs if x.best]
    if not pairs:
        what = "no labelled item" if shared else "no item"
        raise UserError(
            f"'{name_a}' and '{name_b}' have {what} in common; expected two results on the same "
            "data, with labels."
        )
    marks_a, marks_b = [x.credit for x, _ in pairs], [y.credit for _, y in pairs]
    return JudgeComparison(
        name_a,
        name_b,
        pairs,
        accuracy([x for x, _ in pairs]),
        accuracy([y for _, y in pairs]),
        paired_test(marks_a, marks_b),
        only_a=sorted(of_a.keys() - of_b.keys()),
        only_b=sorted(of_b.keys() - of_a.keys()),
        agreed=sum(x.choice == y.choice for x, y in pairs) / len(pairs),
    )


def _by_id(judged: Sequence[Judged], name: str) -> dict[str, Judged]:
    judges = sorted({one.judge for one in judged})
    if len(judges) > 1:
        raise UserError(
            f"'{name}' holds the results of {len(judges)} judges; choose one as FILE#JUDGE: "
            f"{', '.join(judges)}."
        )
    return {one.id: one for one in judged}
