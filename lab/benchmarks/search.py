"""Search beside bm25s and tantivy: build, memory, queries a second; and quality on Cranfield.

    python lab/benchmarks/search.py speed --words DATA/wiki_corpus/corpus.parquet
    python lab/benchmarks/search.py speed --words DATA/wiki_corpus/corpus.parquet \
        --passages 1000000 --engines burnish
    python lab/benchmarks/search.py quality --data DATA/cranfield

`speed` writes one JSONL file of passages (40 to 120 words, drawn by their frequency in the texts of
`--words`) and gives it to each engine in a process of its own: from that file to an index on disk
that holds the texts, then the same queries one at a time. Queries are 2 to 8 neighbouring words of
real texts. Times are CPU seconds, since machines are shared; every engine runs on one thread.
tantivy is only here: pip install tantivy.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ENGINES = ("burnish", "bm25s", "tantivy")
K = 10


# --- speed


def make_passages(words_from: Path, count: int, folder: Path, queries: int) -> tuple[Path, Path]:
    """A file of passages and one of queries, the same for every run."""
    import numpy as np
    import pyarrow.parquet

    from burnish.tools.search import tokens

    texts = pyarrow.parquet.read_table(words_from, columns=["text"]).column("text").to_pylist()
    real = [tokens(text) for text in texts]
    flat = np.array([word for one in real for word in one], dtype=object)
    rng = np.random.default_rng(0)
    file = folder / "passages.jsonl"
    with file.open("w", encoding="utf-8") as out:
        for number in range(count):
            drawn = flat[rng.integers(0, len(flat), rng.integers(40, 121))]
            out.write(json.dumps({"id": str(number), "text": " ".join(drawn)}) + "\n")
    choice = random.Random(0)
    asked = []
    while len(asked) < queries:
        words = choice.choice(real)
        length = choice.randint(2, 8)
        if len(words) > length:
            start = choice.randrange(len(words) - length)
            asked.append(" ".join(words[start : start + length]))
    (folder / "queries.json").write_text(json.dumps(asked))
    return file, folder / "queries.json"


Search = Callable[[str], Sequence[int]]


def build_burnish(file: Path, folder: Path) -> None:
    from burnish.tools.search import open_index

    open_index(file, folder=folder)


def open_burnish(file: Path, folder: Path) -> Search:
    from burnish.tools.search import open_index

    index = open_index(file, folder=folder)
    return lambda query: [int(hit.passage.id) for hit in index.find(query, K)]


def build_bm25s(file: Path, folder: Path) -> None:
    import bm25s

    with file.open(encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    words = bm25s.tokenize(texts, stopwords=None, show_progress=False)
    engine = bm25s.BM25(corpus=texts)
    engine.index(words, show_progress=False)
    engine.save(str(folder), show_progress=False)


def open_bm25s(file: Path, folder: Path) -> Search:
    import bm25s

    engine = bm25s.BM25.load(str(folder), load_corpus=True, mmap=True)

    def search(query: str) -> list[int]:
        words = bm25s.tokenize([query], stopwords=None, return_ids=False, show_progress=False)
        found = engine.retrieve(words, k=K, show_progress=False)
        return [int(one["id"]) for one in found.documents[0]]

    return search


def _tantivy_schema() -> Any:
    import tantivy

    builder = tantivy.SchemaBuilder()
    builder.add_unsigned_field("id", stored=True)
    builder.add_text_field("text", stored=True)
    return builder.build()


def build_tantivy(file: Path, folder: Path) -> None:
    import tantivy

    folder.mkdir()
    index = tantivy.Index(_tantivy_schema(), path=str(folder))
    writer = index.writer(heap_size=256_000_000, num_threads=1)
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            writer.add_document(tantivy.Document(id=int(row["id"]), text=row["text"]))
    writer.commit()
    writer.wait_merging_threads()


def open_tantivy(file: Path, folder: Path) -> Search:
    import tantivy

    index = tantivy.Index(_tantivy_schema(), path=str(folder))
    index.reload()
    searcher = index.searcher()

    def search(query: str) -> list[int]:
        parsed = index.parse_query(query, ["text"])
        hits = searcher.search(parsed, K).hits
        documents = [searcher.doc(address) for _, address in hits]
        [document["text"][0] for document in documents]
        return [document["id"][0] for document in documents]

    return search


def child(engine: str, step: str, file: Path, queries: Path, folder: Path) -> None:
    """One engine's build or its queries, printed as JSON."""
    started = time.process_time()
    if step == "build":
        globals()[f"build_{engine}"](file, folder)
        told: dict[str, Any] = {"build_s": time.process_time() - started}
    else:
        search = globals()[f"open_{engine}"](file, folder)
        told = {"open_s": time.process_time() - started}
        asked = json.loads(queries.read_text())
        for query in asked[: len(asked) // 10]:
            search(query)
        started = time.process_time()
        found = [list(search(query)) for query in asked]
        told |= {"query_s": (time.process_time() - started) / len(asked), "found": found}
    told["memory_mb"] = peak_memory_mb()
    print(json.dumps(told))


def peak_memory_mb() -> float:
    """Most memory of this process; `ru_maxrss` would count its parent's as well."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def speed(options: argparse.Namespace) -> None:
    scratch = Path(tempfile.mkdtemp(prefix="search-", dir=options.scratch))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
    try:
        file, queries = make_passages(options.words, options.passages, scratch, options.queries)
        size = file.stat().st_size / 2**20
        print(f"{options.passages:,} passages ({size:.0f} MB), {options.queries} queries, k {K}")
        results: dict[str, dict[str, Any]] = {}
        for engine in options.engines:
            parts = {}
            for step in ("build", "query"):
                command = [sys.executable, __file__, "child", engine, step, str(file)]
                command += [str(queries), str(scratch / engine)]
                done = subprocess.run(command, capture_output=True, text=True, env=environment)
                if done.returncode:
                    raise SystemExit(f"{engine} {step}: {done.stderr.strip()[-2000:]}")
                parts[step] = json.loads(done.stdout.splitlines()[-1])
            disk = sum(f.stat().st_size for f in (scratch / engine).rglob("*") if f.is_file())
            results[engine] = parts | {"disk_mb": disk / 2**20}
            result = results[engine]
            build, query = result["build"], result["query"]
            print(
                f"{engine:8} build {build['build_s']:7.1f} s, {build['memory_mb']:6.0f} MB   "
                f"open {query['open_s']:5.2f} s   {1 / query['query_s']:7.0f} queries/s, "
                f"{query['memory_mb']:6.0f} MB   disk {result['disk_mb']:6.0f} MB",
                flush=True,
            )
        _print_ratios(results)
    finally:
        shutil.rmtree(scratch)


def _print_ratios(results: dict[str, dict[str, Any]]) -> None:
    ours = results.get("burnish")
    for engine, theirs in results.items():
        if ours is None or engine == "burnish":
            continue
        build = theirs["build"]["build_s"] / ours["build"]["build_s"]
        query = theirs["query"]["query_s"] / ours["query"]["query_s"]
        memory = theirs["build"]["memory_mb"] / ours["build"]["memory_mb"]
        pairs = zip(theirs["query"]["found"], ours["query"]["found"], strict=True)
        same = statistics.fmean(len(set(a) & set(b)) / max(len(b), 1) for a, b in pairs)
        print(
            f"{engine} over burnish: build time {build:.2f}, build memory {memory:.2f}, "
            f"time a query {query:.2f}; {100 * same:.0f} % of the best {K} are the same"
        )


# --- quality


def ndcg(ranked: Sequence[str], gains: dict[str, float], k: int = K) -> float:
    """Normalised discounted cumulative gain: gains by rank over those of the best order."""
    found = sum(gains.get(id_, 0.0) / math.log2(place + 2) for place, id_ in enumerate(ranked[:k]))
    best = sorted(gains.values(), reverse=True)[:k]
    return found / sum(gain / math.log2(place + 2) for place, gain in enumerate(best))


def quality(options: argparse.Namespace) -> None:
    """nDCG@10 of each way of searching, with intervals over queries, and paired differences."""
    import pyarrow.parquet

    from burnish.bench.statistics import mean_estimate, paired_difference
    from burnish.intervals import interval_text
    from burnish.tools.search import Source, open_index

    def rows(name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = pyarrow.parquet.read_table(
            options.data / f"{name}.parquet"
        ).to_pylist()
        return found

    # Documents stay whole: judgements are of documents.
    source = Source(str(options.data / "docs.parquet"), id="doc_id", longest=1_000_000)
    index = open_index(source, folder=options.index, how="hybrid")
    # Grade 1 is a complete answer, 4 of minimum interest; -1 is the document the query came from.
    gain = {1: 4.0, 2: 3.0, 3: 2.0, 4: 1.0, -1: 4.0}
    judged: dict[int, dict[str, float]] = {}
    queries: dict[int, str] = {}
    for split in ("train", "test"):
        queries |= {row["query_id"]: row["text"] for row in rows(f"queries_{split}")}
        for row in rows(f"qrels_{split}"):
            judged.setdefault(row["query_id"], {})[str(row["doc_id"])] = gain[row["grade"]]
    scores: dict[str, list[float]] = {}
    for how in ("bm25", "dense", "hybrid"):
        scores[how] = [
            ndcg([hit.passage.id for hit in index.find(text, K, how)], judged[number])
            for number, text in queries.items()
            if number in judged
        ]
        print(f"{how:7} nDCG@{K} {interval_text(*mean_estimate(scores[how]))}")
    for how in ("dense", "hybrid"):
        change = paired_difference(scores["bm25"], scores[how])
        print(f"{how} - bm25, paired: {interval_text(*change, signed=True)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parts = parser.add_subparsers(dest="part", required=True)
    fast = parts.add_parser("speed")
    fast.add_argument("--words", type=Path, required=True)
    fast.add_argument("--passages", type=int, default=100_000)
    fast.add_argument("--queries", type=int, default=500)
    fast.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    fast.add_argument("--scratch", type=Path, default=None)
    good = parts.add_parser("quality")
    good.add_argument("--data", type=Path, required=True)
    good.add_argument("--index", type=Path, default=None)
    inner = parts.add_parser("child")
    inner.add_argument("engine")
    inner.add_argument("step")
    inner.add_argument("paths", nargs=3, type=Path)
    options = parser.parse_args()
    if options.part == "child":
        child(options.engine, options.step, *options.paths)
    elif options.part == "speed":
        speed(options)
    else:
        quality(options)


if __name__ == "__main__":
    main()
