"""The sampler's kernels are compiled for a GPU of today, without one."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="the kernels need triton")

COMPILE = """
import json, sys
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from burnish.lm.sampler import kernels

name, types, constants = json.loads(sys.argv[1])
signature = {**types, **dict.fromkeys(constants, "constexpr")}
source = ASTSource(fn=getattr(kernels, name), signature=signature, constexprs=constants)
print(len(compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]))
"""
STREAMS = dict.fromkeys(
    ("x", "new_x", "y", "update", "x_weight", "y_weight", "in_weight", "x_scale", "out"), "*bf16"
) | {"y": "*fp32", "size": "i32", "share": "fp32", "eps": "fp32"}
SWITCHES = ("HAS_X", "HAS_Y", "HAS_UPDATE", "MOVES_X", "X_NORM", "IN_NORM", "X_SCALE")
ATTEND = dict.fromkeys(
    [
        "qkv",
        "keys",
        "values",
        "table",
        "lengths",
        "left",
        "cos",
        "sin",
        "q_weight",
        "k_weight",
        "v_weight",
        "out",
        "part_out",
        "part_peak",
        "part_total",
    ],
    "*bf16",
)
ATTEND |= dict.fromkeys(("table", "lengths", "left"), "*i32")
ATTEND |= dict.fromkeys(("cos", "sin", "part_out", "part_peak", "part_total"), "*fp32")
ATTEND |= {"width": "i32", "scale": "fp32", "eps": "fp32"}
SIZES = {
    "HEADS": 9,
    "KV": 3,
    "GROUP": 3,
    "HALF": 32,
    "PAGE": 16,
    "WINDOW": 0,
    "SHARES": 4,
    "G": 16,
    "E": 32,
    "N": 64,
}


def compiled(name, types, constants):
    """Length of the kernel's PTX; in a process of its own, where no interpreter is asked for."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, json.dumps([name, types, constants])],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "TRITON_INTERPRET": "0"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return int(done.stdout.split()[-1])


@pytest.mark.parametrize(
    "switches",
    [
        ("HAS_Y", "HAS_UPDATE"),
        ("HAS_X", "HAS_Y", "HAS_UPDATE", "MOVES_X", "X_NORM", "IN_NORM"),
        ("HAS_X", "HAS_Y", "HAS_UPDATE", "MOVES_X", "X_SCALE"),
    ],
    ids=["pre", "siamese_post_pre", "siamese_hybrid_pre"],
)
def test_streams_are_read_by_a_kernel(switches):
    constants = {name: name in switches for name in SWITCHES} | {"BLOCK": 1024}
    assert compiled("read_streams", STREAMS, constants) > 1000


@pytest.mark.parametrize("norms", [0, 2])
def test_attention_is_a_kernel_with_and_without_norms(norms):
    assert compiled("attend", ATTEND, SIZES | {"NORMS": norms, "PRECISION": "ieee"}) > 1000
