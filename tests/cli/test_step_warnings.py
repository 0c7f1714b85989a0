"""What goes wrong in a step is stored with the run, whoever looks on, and once."""

from fake_training import FakeTrainer, step_done

from burnish.api.launch import _warnings_kept

USELESS = "no useful group: within each prompt all answers got the same reward"


def test_a_step_that_is_made_again_warns_once_and_a_stage_is_named(tmp_path):
    trainer = FakeTrainer(tmp_path / "run")
    with trainer.store as store:
        for _ in range(2):  # the second start of a run makes its last step again
            keep = _warnings_kept(trainer)
            keep(step_done(3, useful_groups=0, metrics={}))
            keep("any other event")
        keep = _warnings_kept(trainer)
        keep(step_done(0, useful_groups=0, metrics={}, stage="warm"))
        first, second = store.events("warning")
    assert first.step == 3
    assert first.message.startswith(USELESS)
    assert second.step is None
    assert second.message.startswith(f"stage 'warm', step 1: {USELESS}")
