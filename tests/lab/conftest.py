"""`lab/` is not installed: it is found from the repository's root; benchmarks are scripts beside each other."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
for place in (ROOT, ROOT / "lab" / "benchmarks", Path(__file__).resolve().parent):
    if str(place) not in sys.path:
        sys.path.insert(0, str(place))
