"""The beginning and the end of a training run on the screen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from burnish.cli.console import count, duration, interval, one_line, out, say, size, warn
from burnish.cli.manifests import rewarded
from burnish.errors import BurnishError
from burnish.store import RunStore
from burnish.texts import shown_path
from burnish.view.curves import RunCurves, curves_of, draw_picture, text_plot


def print_header(event: Any, notes: tuple[str, ...] = ()) -> None:
    """What will be trained, on what, and what it will need."""
    trained = ""
    if event.trained_parameters != event.parameters:
        trained = f", {count(event.trained_parameters)} trained"
    threads = f", {event.threads} thread{'s' * (event.threads != 1)}"
    say(
        f"model     {event.model}: {count(event.parameters)} parameters{trained}, {event.device}, "
        f"{event.dtype}{threads if event.device == 'cpu' else ''}",
    )
    forecast = event.forecast
    parts = ", ".join(f"{name} {size(value)}" for name, value in forecast.memory.items())
    fits = "" if forecast.total <= forecast.available else ", MORE THAN IS FREE"
    say(
        f"memory    {size(forecast.total)} of {size(forecast.available)} free{fits} ({parts})",
        style="" if not fits else "yellow",
    )
    left = event.steps - event.done
    say(
        f"time      at least {duration(forecast.step_s)} a step (sampling "
        f"{duration(forecast.rollout_s)}, update {duration(forecast.update_s)}), "
        f"{duration(forecast.step_s * left)} for {left} steps and then evaluation"
    )
    prompts = event.prompts
    say(f"prompts   {prompts.looked_at} measured, longest {prompts.longest} tokens")
    if prompts.overlong:
        worst = ", ".join(f"{task} ({tokens})" for task, tokens in prompts.overlong[:3])
        more = f" and {len(prompts.overlong) - 3} more" if len(prompts.overlong) > 3 else ""
        warn(f"{len(prompts.overlong)} prompts are over the limit: {worst}{more}")
    for note in notes:
        say(f"data      {note}")
    if event.done:
        say(f"continue  {event.done} of {event.steps} steps are done already", style="cyan")
    say(f"run       {shown_path(event.folder)}")


def print_report(event: Any, *, brief: bool = False) -> None:
    """Before and after with intervals, the curves, and where to look further."""
    if event.reason:
        warn(f"stopped: {event.reason}")
    if not brief:
        _print_curves(event.folder)
    with RunStore.open(event.folder, read_only=True) as store:
        rewards = rewarded(store.about)
    if rewards and not brief:
        say(f"rewarded  {one_line(rewards)}")
    say(result_line(event), style="bold")
    if brief:
        return
    place = shown_path(event.folder)
    run = place.name if place.parent == Path("runs") else str(place)
    say(f"look further     burnish show {run}    burnish runs")
    newest = sorted((event.folder / "checkpoints").glob("step-*"))
    if newest:
        say(f"trained model    {shown_path(newest[-1])}")


def result_line(event: Any) -> str:
    """`held out 0.32 [..] -> 0.61 [..]; change +0.29 [..], paired over 100 prompts`."""
    if event.before is None or event.after is None:
        return f"{event.status} in {duration(event.seconds)}, without a held-out evaluation"
    line = f"held out  {interval(event.before)} -> {interval(event.after)}"
    if event.change is not None:
        line += (
            f"; change {interval(event.change, signed=True)}, paired over "
            f"{event.change.size} prompts, 95 % intervals"
        )
    return f"{line}  ({event.status} in {duration(event.seconds)})"


def _print_curves(folder: Path) -> None:
    with RunStore.open(folder, read_only=True) as store:
        curves = curves_of(store)
    print_curves(curves)
    picture = folder / "plots" / "curves.png"
    try:
        draw_picture(curves, picture)
    except BurnishError as error:
        # The run itself is whole; a missing picture must not make it fail.
        say(str(error), style="yellow")
    else:
        say(f"curves           {shown_path(picture)}")


def print_curves(curves: RunCurves) -> None:
    """Reward and length over the steps, side by side where the terminal is wide enough."""
    rewards = {"reward": curves.reward} if curves.reward else curves.parts
    plots = {f"reward: {k}" if k != "reward" else k: v for k, v in rewards.items()}
    plots = dict(list(plots.items())[:1]) | {"mean length (tokens)": curves.length}
    plots = {title: points for title, points in plots.items() if len(points) > 1}
    if not plots:
        return
    beside = out.width >= 72 and len(plots) > 1
    width = min((out.width - 4) // 2 if beside else out.width - 2, 60)
    is_ascii = out.options.ascii_only
    blocks = [
        [title, *text_plot(points, width=width, height=7, ascii_only=is_ascii).split("\n")]
        for title, points in plots.items()
    ]
    if not beside:
        for block in blocks:
            say("\n".join(block))
        return
    for lines in zip(*blocks, strict=True):
        say("    ".join(f"{line:<{width}}" for line in lines).rstrip())
