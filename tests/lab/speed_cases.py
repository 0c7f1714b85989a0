"""Raw measurements with round numbers, for the tests of speed.py."""

from _speed_records import Accuracy, PeerResult, Rates, Result, Row, Step, StepSize

SIZE = StepSize(prompts=2, samples=4, max_tokens=8, steps=4, warm=2, peer_steps=3, peer_warm=1)


def row(program: str, layout: str, seconds: list[float], **more) -> Row:
    fields = {"batch": 10, "new_tokens": 100, "measured_tokens": 100, "tokens": 1000}
    fields |= {"dtype": "float32", "prompt_tokens": 500, "warm_up_s": 9.0, "floor_s": 0.5}
    return Row(program=program, layout=layout, seconds=seconds, **(fields | more))


def step(seconds: float, **more) -> Step:
    fields = {"rollout_s": seconds / 2, "score_s": seconds / 10, "update_s": seconds / 5}
    fields |= {"tokens": 40, "rollouts": 8, "computed_tokens": 60, "trained_tokens": 20}
    fields |= {"floor_s": seconds / 4, "mismatch": 0.01}
    return Step(seconds=seconds, **(fields | more))


def result(*seconds: float, **more) -> Result:
    fields = {"accuracy": [Accuracy(0, 0.25, 200), Accuracy(4, 0.75, 200)]}
    fields |= {"peak_bytes": 1000, "peak_kind": "allocated on the GPU", "update_bytes": 400}
    fields |= {"forecast_bytes": {"weights": 700, "gradients": 100, "activations": 300}}
    return Result(steps=[step(s) for s in seconds], **(fields | more))


def peer(*seconds: float, **more) -> PeerResult:
    fields = {"tokens": [64] * len(seconds), "rollouts": 8, "peak_bytes": 2000}
    fields |= {"peak_kind": "allocated on the GPU", "accumulate": 1}
    return PeerResult(seconds=list(seconds), **(fields | more))


RATES = Rates(bytes_per_s=1000.0, operations_per_s=10_000.0)
