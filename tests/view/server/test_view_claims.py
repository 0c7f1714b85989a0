"""The claims of a game of MARCH beside its documents, and what is no such game."""

import pytest

from burnish.records import Author, Message, Reward, Span, Task, Trajectory
from burnish.store import RunStore, StoredSample
from burnish.view.pages.claims import claims_view
from burnish.view.pages.sample_page import sample_page

TRACE = {
    "role": "solver", "sample": -1, "query": "How many?", "answer": "14 bridges", "reward": -1.0,
    "refusals": 1, "leaks": 1, "documents": "documents",
    "claims": [{"question": "How many bridges?", "answer": "14", "checks": ["12", None, "12"],
                "vote": -3, "holds": False, "by_heart": True}],
}  # fmt: skip


def stored(info, documents=("<b>12</b> bridges",)):
    task = Task("t", (Message("user", "How many?"),), {"documents": list(documents)})
    span = Span(Author.MODEL, (7, 2), (-0.1, -0.3), trainable=True)
    trajectory = Trajectory(
        "0.0.0", "t", "0.0.solver", (span,), "14 bridges", role="solver", info=info
    )
    return StoredSample(
        step=0, split="train", index=0, task=task, trajectory=trajectory,
        reward=Reward("march", -1.0), advantage=-0.5,
    )  # fmt: skip


def test_the_page_of_a_sample_has_claims_votes_and_documents(tmp_path):
    with RunStore.create(tmp_path / "run", {"steps": 1}, {}, recipe="march") as store:
        store.append_rollouts(0, [stored({"march": TRACE})])
        store.finish("finished")
    found = sample_page(tmp_path / "run", "train-1-1-1", 0)["claims"]
    assert found is not None
    (claim,) = found["claims"]
    assert (claim.checks, claim.vote, claim.holds, claim.by_heart) == (
        ["12", None, "12"], -3, False, True,
    )  # fmt: skip
    assert found["documents"] == ["<b>12</b> bridges"]  # text: the page shows it as such
    assert (found["role"], found["left_out"], found["reward"]) == ("solver", 2, -1.0)


@pytest.mark.parametrize("info", [{}, {"march": 5}, {"march": {"claims": "many"}}, {"march": {}}])
def test_other_info_is_no_game(info):
    assert claims_view(stored(info)) is None
