"""Many calls at once: in order, within the limit, and with one predictable error."""

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings, strategies as st

from burnish.rewards.scorer import gather


class Desk:
    """Calls that wait a little, and what was seen of them."""

    def __init__(self) -> None:
        self.busy = self.most = 0
        self.begun: list[int] = []
        self.ended: list[int] = []

    async def call(self, number: int, rounds: int = 1, error: str = "") -> int:
        self.begun.append(number)
        self.busy += 1
        self.most = max(self.most, self.busy)
        try:
            for _ in range(rounds):
                await anyio.lowlevel.checkpoint()
        finally:
            self.busy -= 1
        if error:
            raise ValueError(error)
        self.ended.append(number)
        return number * 10


def calls(desk: Desk, *settings: tuple[int, str]):
    def one(number: int, rounds: int, error: str):
        return lambda: desk.call(number, rounds, error)

    return [one(number, *setting) for number, setting in enumerate(settings)]


async def run(work, limit):
    return await gather(work, limit=limit)


@settings(max_examples=40, deadline=None)
@given(rounds=st.lists(st.integers(0, 5), max_size=12), limit=st.integers(1, 6))
def test_results_keep_their_order_and_the_limit_holds(rounds, limit):
    desk = Desk()
    found = anyio.run(run, calls(desk, *((r, "") for r in rounds)), limit)
    assert found == [number * 10 for number in range(len(rounds))]
    assert desk.most <= limit or len(rounds) == 1
    assert desk.begun == sorted(desk.begun)


def test_the_limit_is_used():
    desk = Desk()
    anyio.run(run, calls(desk, *[(3, "")] * 9), 4)
    assert desk.most == 4


@pytest.mark.parametrize("slow", [0, 1, 20])
def test_the_first_call_that_fails_is_raised_whoever_fails_first_in_time(slow):
    desk = Desk()
    work = calls(desk, (9, ""), (slow, "one"), (0, "two"), (50, ""), (0, ""))
    with pytest.raises(ValueError, match="one"):
        anyio.run(run, work, 4)
    assert 0 in desk.ended, "a call before the error must come to its end"
    assert 3 not in desk.ended, "a call after the error is of no use to anyone"


def test_after_an_error_nothing_new_is_begun():
    desk = Desk()
    with pytest.raises(ValueError, match="stop"):
        anyio.run(run, calls(desk, (0, "stop"), *[(5, "")] * 20), 2)
    assert max(desk.begun) <= 2


def test_calls_that_never_wait_still_notice_that_nobody_wants_them_any_more():
    seen: list[int] = []

    async def main() -> None:
        with anyio.CancelScope() as scope:

            async def busy(number: int) -> None:
                seen.append(number)
                if number == 2:
                    scope.cancel()

            await gather([lambda n=n: busy(n) for n in range(100)], limit=1)

    anyio.run(main)
    assert seen == [0, 1, 2]
