"""A study on the tiny model with an arm whose reward always fails; other processes import it."""

from lab.plan import Arm, Column, Sizes, Study, Subject

SIZES = Sizes(
    overrides={"checkpoint.every": 0, "checkpoint.keep": 1},
    caps={"model.device": "cpu", "steps": 2, "rollout.prompts": 2, "evaluation.prompts": 4},
    start_caps={"model.path": "tiny"}, seeds=2, prompts=7, device="cpu",
)  # fmt: skip


def broken(text):
    """A reward whose service is down."""
    raise ConnectionError("the judge is away")


def measure(subject: Subject) -> dict[str, float]:
    """Figures that tell which folders and numbers came through."""
    return {
        "is_trained": float((subject.model / "trainer" / "state.json").is_file()),
        "has_start": float((subject.start / "model.safetensors").is_file()),
        "asked": float(subject.prompts),
    }


BROKEN = [{"kind": "function", "name": "digit", "path": "tiny_study:broken"}]
STUDY = Study(
    name="tiny", about="Do digits come?",
    arms=(
        Arm("slow", "tiny", {"optimiser.learning_rate": 1e-5}),
        Arm("fast, much", "tiny"),
        Arm("broken", "tiny", {"rewards": BROKEN}),
    ),
    columns=(Column("is_trained", "trained"),),
    start={
        "stages": [{"steps": 2, "train": {"kind": "sft", "batch": 2}}],
        "experts.field": "answer",
    },
    measure=measure, at_equal_tokens=True, at_equal_reward=True,
)  # fmt: skip
