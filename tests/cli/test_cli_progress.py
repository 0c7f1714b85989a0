"""The live table, its columns on narrow screens, and the warnings beside it."""

import io

from fake_training import FakeTrainer, step_done
from rich.console import Console

import burnish.cli.console as console
import burnish.cli.drawing as drawing
import burnish.cli.progress as progress
from burnish.cli.progress import LiveView, Watch, step_table, view_for


def test_names_of_rewards_are_no_markup_and_steer_no_terminal():
    metrics = {"reward/a[/b]\x1b[2J/mean": 0.5, "reward/[red]c/mean": 0.25, "loss/x[/y]": 0.125}
    event = step_done(0, metrics=metrics)
    screen = Console(file=io.StringIO(), width=200, force_terminal=False)
    screen.print(step_table([event], 200))
    assert isinstance(screen.file, io.StringIO)
    text = screen.file.getvalue()
    assert "a[/b]\\x1b[2J 0.500, [red]c 0.250" in text
    assert "x[/y] loss 0.1250" in text


def test_the_live_view_runs_a_whole_run(tmp_path, monkeypatch):
    screen = Console(file=io.StringIO(), width=120, force_terminal=True)
    for module in (console, progress, drawing):
        monkeypatch.setattr(module, "out", screen)
    trainer = FakeTrainer(tmp_path / "run")
    view = view_for(trainer, quiet=False, as_json=False)
    assert isinstance(view, LiveView)
    with trainer.store, view:
        for event in trainer.run():
            view.show(event)
    assert view.live is None
    assert isinstance(screen.file, io.StringIO)
    text = screen.file.getvalue()
    assert "812" in text
    assert "no useful group" in text
    assert "0.610 [0.512, 0.700]" in text


def test_only_the_main_process_shows_anything(tmp_path, capsys):
    trainer = FakeTrainer(tmp_path / "run")
    trainer.world.is_main = False
    view = view_for(trainer, quiet=False, as_json=True)
    with trainer.store, view:
        for event in trainer.run():
            view.show(event)
    assert capsys.readouterr().out == ""


def test_a_lasting_trouble_is_told_ever_more_rarely():
    watch = Watch(budget=16)
    told = [step for step in range(130) if watch.see(step_done(step, useful_groups=0, metrics={}))]
    assert told == [0, 4, 24, 124]


def test_cut_answers_are_warned_of_once_with_what_to_do():
    watch = Watch(budget=16)
    metrics = {"length/truncated_share": 0.34}
    told = [line for step in range(3, 30) for line in watch.see(step_done(step, metrics=metrics))]
    assert told == [
        "step 4: 34% of the answers were cut at rollout.max_tokens=16: what they would have come to "
        "is neither seen nor rewarded; give them room with rollout.max_tokens=32."
    ]
    third = {"length/truncated_share": 0.33}
    assert Watch(budget=16).see(step_done(0, metrics=third)) == []
    assert Watch(budget=0).see(step_done(0, metrics=metrics)) == [], "the limit is meant"


def test_a_shipped_recipes_own_limit_is_meant_and_a_changed_one_is_warned_of(
    typed, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    words = ("train", "tiny", "steps=1", "evaluation.prompts=0", "rollout.prompts=1")
    assert "were cut at" not in typed(*words, "run.name=a").err
    cut = typed(*words, "run.name=b", "rollout.max_tokens=3").err
    assert "were cut at rollout.max_tokens=3" in cut


def test_nothing_is_said_of_a_step_without_trouble():
    assert Watch(16).see(step_done(0, metrics={"status/ok": 1.0})) == []
