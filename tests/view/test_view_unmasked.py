"""The step at which a diffusion model wrote each token, beside its tokens."""

from burnish.records import Author, Reward, Span, Task, Trajectory
from burnish.store import StoredSample
from burnish.view.pages.tokens import unmasked_steps

SPANS = (
    Span(Author.PROMPT, (5, 6)), Span(Author.MODEL, (7, 8, 9), (-0.1, -0.1, -0.1), trainable=True),
    Span(Author.TOOL, (4,)), Span(Author.MODEL, (10,), (-0.1,), trainable=True),
)  # fmt: skip


def sample(info):
    trajectory = Trajectory("t", "task", "task", SPANS, "x", info=info)
    task = Task("task", ())
    return StoredSample(
        step=0, split="train", index=0, task=task, trajectory=trajectory,
        reward=Reward("total", 1.0), advantage=None, keep=False,
    )  # fmt: skip


def test_steps_count_from_one_and_stand_beside_the_models_own_tokens():
    found = unmasked_steps(sample({"unmasked": [[2, 0, 1], [0]]}), SPANS)
    assert found == [None, None, 3, 1, 2, None, 1]


def test_what_does_not_fit_is_not_shown():
    assert unmasked_steps(sample({}), SPANS) is None
    assert unmasked_steps(sample({"unmasked": [[2, 0], [0]]}), SPANS) is None
    assert unmasked_steps(sample({"unmasked": "text"}), SPANS) is None
