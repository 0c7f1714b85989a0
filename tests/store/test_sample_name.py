"""Samples are named in messages as everywhere else: exactly where stored, by their place before."""

from store_samples import make_sample

from burnish.store import RunStore
from burnish.store.sample_name import ids_in, names_of_ids, renamed


def test_ids_of_stored_samples_become_their_names(tmp_path):
    kept = [make_sample(2, index) for index in range(4, 8)]  # the first prompt was left out
    with RunStore.create(tmp_path / "run", {}, {}) as run:
        run.append_rollouts(2, kept)
        names = names_of_ids(run, ["2.1.0", "2.1.3", "2.7.0", "2.0.greedy.1", "eval.2.4", "p/3"], 2)
        assert names[:2] == ["train-3-1-1", "train-3-1-4"]
        assert names[:2] == run.names([kept[0], kept[3]])
    # Not stored: by their place in the step; an id that tells no place stays.
    assert names[2:] == ["train-3-8-1", "greedy-3-1-2", "held_out-2-5-1", "p/3"]


def test_only_whole_ids_of_a_line_are_replaced():
    names = {"0.0.1": "train-1-1-2", "0.0.11": "train-1-1-12"}
    line = "samples 0.0.1, 0.0.11 and 10.0.1 (0.0.1). Version 0.0.1.2, path a/0.0.1"
    wanted = (
        "samples train-1-1-2, train-1-1-12 and 10.0.1 (train-1-1-2). Version 0.0.1.2, path a/0.0.1"
    )
    assert renamed(line, names) == wanted
    assert ids_in(line, names) == ("0.0.1", "0.0.11")
    assert renamed("nothing", {}) == "nothing"
    assert ids_in("0.0.1", []) == ()
