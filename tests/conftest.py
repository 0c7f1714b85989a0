"""One thread a process: the models of the suite are tiny, and two workers share two cores."""

import gc
import os
from pathlib import Path

from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if not any(Path("/dev").glob("nvidia[0-9]*")):
    # Triton reads it when it is first imported, and many a library imports it.
    os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ["COLUMNS"] = "100"  # the console reads it once, when it is first imported

# Shared cores make single examples slow now and then; what is checked is the property. A property
# that breaks does so within a few examples; `make test` looks at a hundred of each.
settings.register_profile("quick", deadline=None, max_examples=25)
settings.register_profile("thorough", deadline=None, max_examples=100)
settings.load_profile("quick")


def pytest_collection_finish() -> None:
    # What the imports made lives as long as the process. Frozen, it is left out of every later
    # collection, and of the one with which each run of a trainer begins.
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    # Libraries in C++ complain of what the interpreter's last collection does not reach.
    gc.unfreeze()
