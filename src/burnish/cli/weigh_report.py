"""`burnish reward weigh` on the screen: a table a method, categories, and what lies below a line."""

from __future__ import annotations

from rich.text import Text

from burnish.cli.bench_report import table_of
from burnish.cli.console import number, one_line, out, say, share
from burnish.cli.reward_weigh import Below, Weighed, category_shares

TITLES = {
    "sum": "sum, then standardise (GRPO)",
    "gdpo": "standardise each, then sum (GDPO)",
    "reference_frozen": "in deviations of the start model",
    "tri_factor": "in deviations of the start model, tri-factor weights (MedAlign)",
}


def print_weighed(weighed: Weighed) -> None:
    """Everything, from the sum to the reasons below a threshold."""
    groups = "1 group" if weighed.groups == 1 else f"{weighed.groups} groups"
    say(f"{weighed.title}: {weighed.answers} answers in {groups}", style="bold")
    say(f"start model: {weighed.unit}", style="bright_black")
    if weighed.replayed:
        earlier = f"{weighed.replayed} answers of earlier steps only move the weights"
        say(earlier, style="bright_black")
    if weighed.scale != "group_std":
        say(f"sums are scaled as in the run: {weighed.scale}", style="bright_black")
    if weighed.not_followed:
        left = ", ".join(map(one_line, weighed.not_followed))
        say(f"not followed of the run's recipe: {left}", style="yellow")
    if weighed.unweighed:
        say(f"of weight 0, left out: {', '.join(weighed.unweighed)}", style="bright_black")
    if all(one.share_K.isnan().all() for one in weighed.found.methods):
        say("no group has rewards that differ: none of the four teaches anything", style="yellow")
    for method, title in TITLES.items():
        say()
        say(title, style="bold")
        _print_method(weighed, method)
    _print_categories(weighed)
    for below in weighed.below:
        _print_below(below)
    say()
    say(
        "share: of the advantage, by mean size; agrees: correlation with it inside the groups; "
        "settles: the weight if further steps were like the last.",
        style="bright_black",
    )


def _print_method(weighed: Weighed, method: str) -> None:
    record = weighed.found.record()
    if record["left_out"][method]:
        say(_left_out(weighed, method), style="yellow")
    has_unit, has_factors = method == "reference_frozen", method == "tri_factor"
    titles = ["reward", "share", "agrees"]
    titles += ["at clip"] if has_unit else []
    factors = ("weakness", "risk", "redundancy")
    titles += ["weight", "settles", *factors] if has_factors else []
    table = table_of(*titles)
    for name, row in record["methods"][method].items():
        known = record["rewards"][name]
        cells = [one_line(name), share(row["share"]), number(row["correlation"], 2)]
        cells += [share(known["saturated"])] if has_unit else []
        keys = ("weight", "settled", *factors) if has_factors else ()
        cells += [number(known[key], 2) for key in keys]
        table.add_row(*(Text(cell) for cell in cells))
    out.print(table)


def _left_out(weighed: Weighed, method: str) -> str:
    """How many answers a method has no advantage for, and for want of which rewards."""
    record = weighed.found.record()
    said = f"leaves out {record['left_out'][method]} of {weighed.answers} answers"
    if method != "sum":
        return f"{said}, which have no reward at all"
    missing = {name: row["missing"] for name, row in record["rewards"].items() if row["missing"]}
    rewards = ", ".join(f"{one_line(name)} in {count}" for name, count in missing.items())
    return f"{said}, for a reward is missing: {rewards}"


def _print_categories(weighed: Weighed) -> None:
    shares = category_shares(weighed.found, weighed.categories)
    if not shares:
        return
    say()
    say("share by category", style="bold")
    table = table_of("category", "sum", "GDPO", "frozen", "tri-factor")
    for label, by_method in shares.items():
        cells = [one_line(label) or "(none)", *(share(value) for value in by_method.values())]
        table.add_row(*(Text(cell) for cell in cells))
    out.print(table)


def _print_below(below: Below) -> None:
    say()
    head = (
        f"{one_line(below.reward)} below {below.threshold:g}: {below.answers} of {below.of} answers"
    )
    say(head, style="bold")
    for cause in below.causes:
        line = Text(f"  {cause.answers} x  {one_line(cause.reason)}  ")
        line.append(one_line(cause.sample), style="bright_black")
        out.print(line, soft_wrap=True)
    if below.silent:
        say(f"  {below.silent} x  (the reward gives no reason)", style="bright_black")
