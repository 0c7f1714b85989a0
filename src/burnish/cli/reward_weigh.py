"""`burnish reward weigh`: what four ways to join several rewards make of those that are recorded."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.text import Text
from typer import Argument, Option

from burnish.api.needs import import_policy
from burnish.cli.console import emit_json, number, one_line, out, say, share
from burnish.cli.drawing import print_rows
from burnish.cli.shared_options import RUNS, AsJson, RunsFolder
from burnish.errors import UserError, did_you_mean
from burnish.store import RunStore, find_run

if TYPE_CHECKING:
    from burnish.bench.weigh_rewards import Recorded, Weighed


TITLES = {
    "sum": "sum, then standardise (GRPO)",
    "gdpo": "standardise each, then sum (GDPO)",
    "reference_frozen": "in deviations of the start model",
    "tri_factor": "in deviations of the start model, tri-factor weights (MedAlign)",
}


def reward_weigh(
    source: Annotated[
        str,
        Argument(
            metavar="RUN|FILE.jsonl",
            help='A run, or rows of {"group": ..., "rewards": {NAME: NUMBER}}.',
        ),
    ],
    step: Annotated[str, Option(metavar="N|A..B", help="Tell only of these steps of a run.")] = "",
    severity: Annotated[
        list[str] | None, Option(metavar="NAME=X", help="How much a broken rule counts.")
    ] = None,
    threshold: Annotated[
        list[str] | None, Option(metavar="NAME=X", help="A reward below X breaks its rule.")
    ] = None,
    reference: Annotated[
        int | None, Option(min=1, metavar="N", help="The first N answers are the start model's.")
    ] = None,
    folder: RunsFolder = RUNS,
    as_json: AsJson = False,
) -> int:
    """Which reward would training follow? Four ways to join recorded rewards, side by side.

    The sum, GDPO, rewards in units of the start model, and these with MedAlign's
    weights: what share of the advantage each reward has, and why it weighs what
    it weighs. Under a threshold: the reasons that the reward gave, with a sample
    each. A run's own settings hold where it has them; what of its recipe none of
    the four follows is named. No model, no GPU.

    \b
      burnish reward weigh medalign-1f --step 1..9
      burnish reward weigh grpo-7c --threshold safety=-0.5 --severity safety=3
      burnish reward weigh rewards.jsonl --reference 64 --json
    """
    import_policy()  # one line where torch is missing
    from burnish.bench.weigh_rewards import weigh

    recorded = _read(folder, source, step)
    weighed = weigh(
        recorded,
        severity=_by_name("--severity", severity or (), recorded.weighed),
        threshold=_by_name("--threshold", threshold or (), recorded.weighed),
        reference=reference,
    )
    if as_json:
        emit_json(weighed.record())
    else:
        print_weighed(weighed)
    return 0


def _read(folder: Path, source: str, step: str) -> Recorded:
    from burnish.bench.weigh_rewards import read_file, read_run
    from burnish.tasks.rows import SUFFIXES

    path = Path(source)
    if path.suffix.lower() in SUFFIXES and not path.is_dir():
        if step:
            raise UserError(f"--step {step} is for runs; {source} is a file.")
        return read_file(path)
    first, last = read_steps(step)
    with RunStore.open(find_run(folder, source), read_only=True) as store:
        return read_run(store, first, last)


def read_steps(text: str) -> tuple[int | None, int | None]:
    """`5` or `1..9`, both ends included, as the store counts them; nothing is all steps."""
    if not text:
        return None, None
    match = re.fullmatch(r"([1-9]\d{0,17})(?:\.\.(\d{1,18}))?", text)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise UserError(
            f"--step: got '{text}'; expected a step such as 5, or a range such as 1..9."
        )
    return int(match[1]) - 1, int(match[2] or match[1]) - 1


def _by_name(flag: str, words: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    from burnish.bench.weigh_rewards import LARGEST

    found = {}
    least = 0.0 if flag == "--severity" else -LARGEST
    for word in words:
        name, has_number, text = word.rpartition("=")
        if not has_number:
            raise UserError(f"{flag} {word}: expected NAME=NUMBER, such as {word}=1.")
        if name not in names:
            raise UserError(
                f"{flag} {word}: there is no reward '{name}' here; expected NAME=NUMBER "
                f"with one of {', '.join(names)}.{did_you_mean(name, names)}"
            )
        try:
            found[name] = float(text)
        except ValueError:
            raise UserError(f"{flag} {word}: '{text}' is no number.") from None
        if math.isnan(found[name]) or not least <= found[name] <= LARGEST:
            raise UserError(
                f"{flag} {word}: got {text}; expected a number from {least:g} to {LARGEST:g}."
            )
    return found


# --- on the screen


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
        record = weighed.found.record()
        if record["left_out"][method]:
            say(_left_out(weighed, method), style="yellow")
        has_unit, has_factors = method == "reference_frozen", method == "tri_factor"
        titles = ["reward", "share", "agrees"]
        titles += ["at clip"] if has_unit else []
        factors = ("weakness", "risk", "redundancy")
        titles += ["weight", "settles", *factors] if has_factors else []
        rows = []
        for name, row in record["methods"][method].items():
            known = record["rewards"][name]
            cells = [one_line(name), share(row["share"]), number(row["correlation"], 2)]
            cells += [share(known["saturated"])] if has_unit else []
            keys = ("weight", "settled", *factors) if has_factors else ()
            cells += [number(known[key], 2) for key in keys]
            rows.append(cells)
        print_rows(titles, rows)
    _print_categories(weighed)
    for below in weighed.below:
        say()
        head = f"{one_line(below.reward)} below {below.threshold:g}: {below.answers} of {below.of} answers"
        say(head, style="bold")
        for cause in below.causes:
            line = Text(f"  {cause.answers} x  {one_line(cause.reason)}  ")
            line.append(one_line(cause.sample), style="bright_black")
            out.print(line, soft_wrap=True)
        if below.silent:
            say(f"  {below.silent} x  (the reward gives no reason)", style="bright_black")
    say()
    say(
        "share: of the advantage, by mean size; agrees: correlation with it inside the groups; "
        "settles: the weight if further steps were like the last.",
        style="bright_black",
    )


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
    from burnish.bench.weigh_rewards import category_shares

    shares = category_shares(weighed.found, weighed.categories)
    if not shares:
        return
    say()
    say("share by category", style="bold")
    rows = ((label or "(none)", *map(share, one.values())) for label, one in shares.items())
    print_rows(("category", "sum", "GDPO", "frozen", "tri-factor"), rows)
