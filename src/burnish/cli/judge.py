"""`burnish judge FILE`: score or compare the responses of a file, and say why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

from rich.text import Text
from typer import Option

from burnish.cli.console import emit_json, number, one_line, out, say
from burnish.cli.drawing import print_rows, reward_tree
from burnish.cli.shared_options import AsJson, File, JudgeFlags, Limit, Oracle, takes
from burnish.errors import JudgeError, UserError
from burnish.records import Status

if TYPE_CHECKING:
    from burnish.bench.items import Item, Judged
    from burnish.bench.open_judge import OpenJudge
    from burnish.lm.budget import Forecast
    from burnish.rewards.judges.evpv.metrics import PremiseCounts


LISTED = 12
"""Rows of the table, and failures, that are shown."""
OUTSIDE = (Status.INFRA_ERROR, Status.TIMEOUT, Status.REWARD_ERROR)
"""Statuses that a failing server or model gives to many items alike."""
UNREAD = (Status.PARSE_ERROR, Status.REFUSED)
"""Statuses of replies that came but hold no verdict."""
CUT = "cut at max_tokens"
"""Stands in the reason of a reply that was too long."""


@takes(JudgeFlags)
def judge(
    file: File,
    flags: JudgeFlags,
    out: Annotated[
        Path | None, Option(metavar="FILE", help="Results; rows already in it are not asked again.")
    ] = None,
    show: Annotated[
        list[str] | None, Option(metavar="COLUMN", help="A column that the judge may see.")
    ] = None,
    limit: Limit = 0,
    explain: Annotated[int, Option(min=0, metavar="N", help="Rows to explain in full.")] = 5,
    oracle: Oracle = False,
    as_json: AsJson = False,
) -> int:
    """Score or compare the responses of a file; every score explains itself.

    A row has a prompt (or messages) and a response, responses, a and b, or
    chosen and rejected; for march also documents, for evpv evidence. What it will take is printed before it starts. A
    judge that fails gives no number: such rows are listed with their status.
    On a laptop's CPU smollm2 takes minutes a row; the second line is a quick
    look. Another command looks for biases: burnish judge probe --help

    \b
      burnish judge pairs.jsonl --with direct --model smollm2
      burnish judge pairs.jsonl --model smollm2 --limit 1 --one-order --max-tokens 60
      burnish judge answers.jsonl --with point --model http://localhost:8000/v1#my-model
      burnish judge pairs.jsonl --with openrs --model DIR --out judged.jsonl --budget-calls 500
      burnish judge rag.jsonl --with march --temperature 0.6 --model http://localhost:8000/v1#m
      burnish judge probe pairs.jsonl --with direct --model smollm2
    """
    import anyio

    from burnish.bench.loaders.reading import read_items
    from burnish.bench.open_judge import check_items, with_inputs
    from burnish.cli import judge_session as session

    # The judge sees the anchor as the other response, so its column is no secret.
    shown = (*(show or ()), *([flags.anchor] if flags.anchor else []))
    items = read_items(file, show=shown)
    items = items[:limit] if limit else items
    judge = session.open_flags(flags)
    items = with_inputs(judge, items)
    check_items(judge, items, oracle=oracle)
    if not as_json:
        say(session.title(judge), style="bold")
    start = perf_counter()
    ask = partial(session.judge_all, oracle=oracle, quiet=as_json)
    found, judged = anyio.run(ask, judge, items, out)
    seconds = perf_counter() - start
    if as_json:
        emit_json(_record(judge, found, judged, seconds))
    else:
        print_items(items, judged, explain)
        print_summary(judged)
        say(session.spent_text(judge, seconds))
        kept = "not kept; --out results/NAME.jsonl keeps them for burnish view"
        say(f"results   {kept if out is None else one_line(str(out))}")
    return check_outside(judged)


def check_outside(judged: list[Judged]) -> int:
    """0, or an error where no item got a verdict.

    A judge of pairs that abstains has given its answer; one that rates an answer has not.
    """
    if not judged:
        raise UserError("there was nothing to judge; expected at least one row.")
    if all(one.status in OUTSIDE for one in judged):
        which = f"all {len(judged)}" if failed_alike(judged) else "the first"
        raise JudgeError(f"no item got a verdict; {which} failed with: {judged[0].reason}")
    if all(
        one.status in (*OUTSIDE, *UNREAD) or (one.status is Status.ABSTAIN and len(one.values) == 1)
        for one in judged
    ):
        raise JudgeError(_unread(judged))
    return 0


def _unread(judged: Sequence[Judged]) -> str:
    # What came differs from reply to reply; what was expected does not.
    causes = [f"{one.status.value}: {one.reason.partition(', got')[0]}" for one in judged]
    most, count = Counter(causes).most_common(1)[0]
    first = judged[causes.index(most)]
    hint = "try a model that follows the prompt's format, or another judge (--with)"
    if first.status is Status.REFUSED:
        hint = "try another model"
    elif CUT in first.reason:
        hint = "give the replies more room (--max-tokens)"
    which = f"all {count}" if count == len(judged) else f"{count} of {len(judged)}"
    return (
        f"no item got a verdict; {which}: {first.status.value}, {one_line(first.reason)}; {hint}."
    )


def _record(
    judge: OpenJudge, found: Forecast, judged: list[Judged], seconds: float
) -> dict[str, Any]:
    from burnish.bench.items import oracle_share
    from burnish.bench.judge_accuracy import accuracy, by_subset
    from burnish.bench.statistics import as_record
    from burnish.cli.judge_session import spent_record

    has_labels = any(one.best for one in judged)
    counts = premises_of(judged)
    return {
        "judge": judge.name,
        "forecast": found._asdict(),
        "spent": spent_record(judge, seconds),
        "statuses": dict(Counter(one.status.value for one in judged)),
        "accuracy": as_record(accuracy(judged)) if has_labels else None,
        "subsets": as_record(by_subset(judged).each) if has_labels else {},
        "oracle_share": oracle_share(judged),
        **({"premises": counts._asdict()} if counts else {}),
        "items": judged,
    }


def print_items(items: Sequence[Item], judged: Sequence[Judged], explain: int) -> None:
    """The first items with their whole explanation, the rest a line each.

    A failure outside is explained once: an item that met the same one again gets a line. Where it
    is all there is, the error that ends the command says it.
    """
    if failed_alike(judged):
        return
    explained = _worth_explaining(judged)[:explain]
    for place in explained:
        item, one = items[place], judged[place]
        say()
        head = Text(one_line(item.id), style="bold").append("  ")
        head.append(outcome(one), style="green" if one.is_valid else "red")
        out.print(head)
        out.print(
            Text(one_line(item.messages[-1].text), style="cyan"), no_wrap=True, overflow="ellipsis"
        )
        for number_of, response in enumerate(item.responses, 1):
            line = f"  {number_of}  {one_line(response.text)}"
            out.print(Text(line), no_wrap=True, overflow="ellipsis")
        # The two rewards of a pair say the same with opposite signs.
        shown = one.rewards[:1] if len(one.rewards) == 2 and _is_pair(one) else one.rewards
        for reward in shown:
            out.print(reward_tree(reward))
    rest = [one for place, one in enumerate(judged) if place not in explained]
    if not rest:
        return
    say()
    rows = []
    for one in rest[:LISTED]:
        is_open = one.best is None or not one.is_valid
        label = "" if is_open else "right" if one.credit == 1 else "not right"
        rows.append((one.id, outcome(one), label))
    print_rows(("item", "verdict", "label"), rows)
    if len(rest) > LISTED:
        say(f"and {len(rest) - LISTED} more; --out keeps all, --explain N explains more")


def outcome(one: Judged) -> str:
    """`response 1 wins (+1.000)`, `0.750`, `tie` or the status that says why there is nothing."""
    if one.choice is None:
        return one.status.value
    if len(one.values) == 1:
        return number(one.values[0])
    if len(one.choice) > 1:
        return "tie" if len(one.choice) == len(one.values) else f"tie of {_places(one)}"
    best = one.values[one.choice[0]]
    return f"response {one.choice[0] + 1} wins ({number(best)})"


def print_summary(judged: Sequence[Judged]) -> None:
    """Counts, accuracy where labels are known, and what got no verdict."""
    from burnish.bench.items import oracle_share
    from burnish.bench.judge_accuracy import accuracy
    from burnish.cli.bench_report import percent

    say()
    statuses = Counter(one.status.value for one in judged)
    told = ", ".join(f"{count} {name}" for name, count in statuses.most_common())
    say(f"verdicts  {told}", style="bold")
    if any(one.best and one.is_valid for one in judged):
        found = accuracy(judged)
        say(
            f"right     {percent(found.all)} of all, {percent(found.decided)} of decided, "
            f"{percent(found.valid)} of valid"
        )
    elif all(len(one.values) == 1 for one in judged):
        values = [one.values[0] for one in judged if one.values[0] is not None]
        if values:
            mean = sum(values) / len(values)
            say(f"values    {number(min(values))} to {number(max(values))}, mean {number(mean)}")
    if share := oracle_share(judged):
        say(f"oracle    {share:.0%} of the verdicts rest on the label", style="yellow")
    if (counts := premises_of(judged)) is not None:
        print_premises(counts)
    failed = [one for one in judged if not one.is_valid]
    alike: dict[str, list[Judged]] = {}
    for one in failed:
        alike.setdefault(cause(one) if one.status in OUTSIDE else one.id, []).append(one)
    for group in list(alike.values())[:LISTED]:
        one = group[0]
        which = one.id if len(group) == 1 else f"{len(group)} items, first {one.id}"
        line = f"  {which}: {one.status.value}  {one.reason}"
        out.print(Text(one_line(line), style="red"), no_wrap=True, overflow="ellipsis")
    if more := sum(len(group) for group in list(alike.values())[LISTED:]):
        say(f"  and {more} more without a verdict", style="red")


def premises_of(judged: Sequence[Judged]) -> PremiseCounts | None:
    """What became of premises; None where the judge checks none."""
    from burnish.rewards.judges.evpv.metrics import premise_counts

    return premise_counts(reward for one in judged for reward in one.rewards)


def print_premises(counts: PremiseCounts) -> None:
    """What became of premises, and for how many responses nobody could check them."""
    told = ", ".join(f"{count} {name}" for name, count in counts.outcomes.items())
    say(f"premises  {told}")
    of = f"of {counts.responses} responses"
    if counts.gate_open:
        why = f"the gate is open for {counts.gate_open} {of}: {counts.reason}"
        say(f"          {one_line(why)}", style="yellow")
    if counts.no_facts:
        why = f"the evidence of {counts.no_facts} {of} holds no fact: all premises are unknown"
        say(f"          {why}", style="yellow")


def failed_alike(judged: Sequence[Judged]) -> bool:
    """Whether several items, and all there are, met the same failure outside."""
    is_outside = all(one.status in OUTSIDE for one in judged)
    return is_outside and len(judged) > 1 and len(set(map(cause, judged))) == 1


def cause(one: Judged) -> str:
    """What failed outside, without how often it was tried."""
    return f"{one.status.value} {one.reason.partition('; gave up after')[0]}"


def _worth_explaining(judged: Sequence[Judged]) -> list[int]:
    """Places of the items, without those that repeat a failure outside."""
    seen: set[str] = set()
    found = []
    for place, one in enumerate(judged):
        if one.status not in OUTSIDE or cause(one) not in seen:
            found.append(place)
        seen.add(cause(one))
    return found


def _is_pair(one: Judged) -> bool:
    first, second = one.values
    return (first is None and second is None) or (
        first is not None and second is not None and first == -second
    )


def _places(one: Judged) -> str:
    return " and ".join(str(place + 1) for place in one.choice or ())
