"""The digest of what is given in memory: whatever changes what a function does changes it."""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from burnish.errors import UserError
from burnish.memory import code_digest, keep_object, kept_files

USED = "def reward(text):\n    return X\n"
CLASS = "class X:\n    limit = {}\n    def of(self): return self.limit\n"

CASES = {
    "pattern": "import re\nX = re.compile('{}')",
    "pattern flags": "import re\nX = re.compile('a', 8 * {})",
    "array": "import numpy as np\nX = np.array([1, {}])",
    "array of objects": "import numpy as np\nX = np.array([1, 'x', {}], dtype=object)",
    "vectorize": "import numpy as np\nX = np.vectorize(lambda t: {})",
    "tensor": "import torch\nX = torch.tensor([1.0, {}])",
    "layer": "import torch\nX = torch.nn.Linear(1, 1)\ntorch.nn.init.constant_(X.weight, {})\n"
    "torch.nn.init.zeros_(X.bias)",
    "decimal": "from decimal import Decimal\nX = Decimal('{}')",
    "path": "from pathlib import Path\nX = Path('a{}')",
    "range": "X = range({})",
    "deque": "from collections import deque\nX = deque([{}])",
    "mappingproxy": "from types import MappingProxyType\nX = MappingProxyType(dict(a=1, b={}))",
    "set": "X = {{'a', 'b', 'c', '{}'}}",
    "set of functions": "X = {{lambda: 1, lambda: 2, lambda: {}}}",
    "huge int": "X = 10 ** 5000 + {}",
    "cached helper": "from functools import lru_cache\n@lru_cache\ndef X(): return {}",
    "cache over a closure": "from functools import cache\nX = cache(lambda: {})",
    "class attribute": CLASS,
    "inherited attribute": CLASS.replace("X", "Base") + "class X(Base): pass",
    "inherited method": "class Base:\n    def f(self): return {}\nclass X(Base): pass",
    "property": "class X:\n    @property\n    def f(self): return {}",
    "property setter": "class X:\n    f = property(lambda s: 1, lambda s, v: {})",
    "enum": "from enum import Enum\nclass X(Enum):\n    A = 1\n    B = {}",
    "enum member": "from enum import Enum\nclass E(Enum):\n    B = {}\nX = E.B",
    "slots": "class S:\n    __slots__ = ('a',)\nX = S()\nX.a = {}",
    "slots dataclass": "from dataclasses import dataclass\n@dataclass(frozen=True, slots=True)\n"
    "class S:\n    a: int\nX = S({})",
    "dataclass default": "from dataclasses import dataclass\n@dataclass\nclass X:\n    a: int = {}",
    "namedtuple": "from collections import namedtuple\nX = namedtuple('N', 'a')({})",
    "text of a subclass": "class T(str): pass\nX = T('{}')",
    "method of a value": "X = 'a{}'.count",
    "object of a library": "import string\nX = string.Template('{}')",
    "hostile __getattr__": "class B:\n    def __getattr__(self, n): raise RuntimeError(n)\n"
    "X = B()\nX.a = {}",
    "function attribute": "def X(): return X.a\nX.a = {}",
}  # fmt: skip


def made(setup: str, value: int, name: str = "reward") -> Any:
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(setup.format(value) + "\n" + USED, space)
    return space[name]


@pytest.mark.parametrize("case", CASES)
def test_a_digest_follows_each_kind_of_value(case):
    one, same, other = (code_digest(made(CASES[case], value)) for value in (2, 2, 3))
    assert one == same
    assert one != other
    if "hostile" in case:  # objects without a name are not given themselves
        return
    # the value itself given as the function, in place of one that a function uses
    alone = [code_digest(made(CASES[case], value, "X")) for value in (2, 2, 3)]
    assert alone[0] == alone[1] != alone[2]


def test_digests_are_the_same_in_other_processes_and_hash_seeds():
    text = (
        "import sys\nfrom burnish.memory import code_digest\n"
        "from test_code_digest import CASES, made\n"
        "for case, setup in CASES.items():\n    print(case, code_digest(made(setup, 2)))\n"
        "print(code_digest(made('f = lambda: g()\\ng = lambda: f() + 1\\nX = (f, {{f, g}}, {})', 1)))"
    )
    said = [
        subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True,
                       env={**os.environ, "PYTHONHASHSEED": str(seed),
                            "PYTHONPATH": str(Path(__file__).parent)}).stdout.splitlines()
        for seed in (1, 2)
    ]  # fmt: skip
    assert len(said[0]) == len(CASES) + 1
    assert said[0] == said[1]


def test_a_cached_function_is_the_same_after_calls():
    cached = made("from functools import lru_cache\n@lru_cache\ndef X(k): return k + {}", 1, "X")
    before = code_digest(cached)
    cached(3)
    assert code_digest(cached) == before


@pytest.mark.parametrize(
    "use",
    [
        "import own_help\ndef reward(t): return own_help.f(t)",
        "from own_help import f\ndef reward(t): return f(t)",
        "def reward(t):\n    import own_help\n    return own_help.f(t)",
        "def reward(t):\n    from own_package import part\n    return part.f(t)",
        "import own_package.part\ndef reward(t): return own_package.part.f(t)",
        "import own_help\ndef reward(t): return getattr(own_help, 'f')(t)",
    ],
)
def test_the_users_own_modules_count_by_their_code(use, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "__init__.py").write_text("")
    (tmp_path / "own_package" / "part.py").write_text("from own_help import f\n")
    (tmp_path / "own_help.py").write_text("from own_deep import K\ndef f(t): return K\n")

    def fresh(deep: str) -> str:
        (tmp_path / "own_deep.py").write_text(deep)
        for name in [name for name in sys.modules if name.startswith("own_")]:
            del sys.modules[name]
        importlib.invalidate_caches()
        space: dict[str, Any] = {"__name__": "__main__"}
        exec(use, space)
        before = code_digest(space["reward"])
        space["reward"]("x")  # what it imports is loaded now
        assert code_digest(space["reward"]) == before
        return before

    one = fresh("K = 1\n")
    assert fresh("# a comment\nK = 1\n") == one
    assert fresh("K = 2\n") != one


def test_an_attribute_set_in_a_module_counts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_limits.py").write_text("LIMIT = 1\n")
    space: dict[str, Any] = {"__name__": "__main__"}
    exec("import own_limits\ndef reward(t): return own_limits.LIMIT", space)
    before = code_digest(space["reward"])
    space["own_limits"].LIMIT = 2
    assert code_digest(space["reward"]) != before


def test_what_has_no_digest_is_refused_by_name(tmp_path):
    with (tmp_path / "log").open("w") as file, socket.socket() as connection:
        held = {
            "an open file": file, "a socket": connection, "a thread": threading.Thread(),
            "a generator": (n for n in (1, 2)),
        }  # fmt: skip
        for words, thing in held.items():
            for wrapped in (thing, {"a": [thing]}):
                reward = made("X = {}", 1)
                reward.__globals__["X"] = wrapped
                for _ in range(2):  # a refusal is not forgotten at the second call
                    name = "X" if wrapped is thing else "a"
                    with pytest.raises(UserError, match=f"reward: '{name}' is {words}") as said:
                        code_digest(reward)
                    assert "\n" not in str(said.value)
                    assert "inside the function" in str(said.value)


def test_streams_locks_and_loggers_are_no_reason_to_refuse():
    setup = (
        "import logging, threading, sys\nfrom typing import Any\n"
        "X = (logging.getLogger('a{}'), threading.Lock(), sys.stderr, sys.stdout, Any, list[int])"
    )
    assert code_digest(made(setup, 1)) == code_digest(made(setup, 1)) != code_digest(made(setup, 2))


def test_depth_is_no_limit():
    def deep(end: int) -> Any:
        reward, value = made("X = {}", 1), [end]
        for _ in range(5000):
            value = [value]  # type: ignore[list-item]
        reward.__globals__["X"] = value
        return reward

    assert code_digest(deep(1)) == code_digest(deep(1)) != code_digest(deep(2))
    ring: list[Any] = []
    ring.append(ring)
    reward = made("X = {}", 1)
    reward.__globals__["X"] = ring
    assert code_digest(reward) == code_digest(reward)


def test_functions_of_one_name_are_files_of_their_own(tmp_path):
    one, two = (lambda text: 1.0), (lambda text: 2.0)
    paths = [keep_object(one), keep_object(two), keep_object(made("X = {}", 1))]
    files = [place.name for place, _ in kept_files(paths, tmp_path)]
    assert files == [f"lambda-{path.partition('@')[2][:8]}.py" for path in paths[:2]] + [
        "reward.py"
    ]
    assert [place.name for place, _ in kept_files(paths[:1], tmp_path)] == ["lambda.py"]
