"""The studies of search self-play, made small: they run, repeat, and measure what they say."""

from lab.ssp import dynamics, noise


def test_noise_lets_fewer_ambiguous_questions_pass_and_costs_an_exact_reader_nothing():
    found = noise.measured(seed=0, count=80, ambiguous=0.5)
    assert found == noise.measured(seed=0, count=80, ambiguous=0.5)
    assert set(found) == {(name, blocks) for name in noise.READERS for blocks in noise.NOISE}
    assert found["first", 7][2] < found["first", 0][2]
    for blocks in noise.NOISE:
        assert found["first", blocks][1] == 1.0
        assert found["every", blocks][0] >= found["first", blocks][0]


def test_the_game_repeats_itself_and_a_fixed_proposer_stays_fixed():
    one = dynamics.played("co-evolution", 0, 12, 0.5)
    assert one == dynamics.played("co-evolution", 0, 12, 0.5)
    assert one[-1]["accuracy"] > one[0]["accuracy"]
    fixed = dynamics.played("fixed proposer", 0, 12, 0.5)
    assert len({step["entropy"] for step in fixed}) == 1
    unchecked = dynamics.played("no check", 0, 6, 0.5)
    assert {step["valid"] for step in unchecked} == {1.0}
    for name in dynamics.ARMS:
        assert len(dynamics.played(name, 1, 3, 0.3)) == 3
