"""Small files in the form that `lab.real.prepare` writes, short enough for the tiny model."""

from pathlib import Path

from lab.real.graded_search import from_cranfield, write_jsonl
from lab.real.tool_data import from_bfcl, from_toolrl

WINGS = ("wing", "flap", "slot", "rotor", "nozzle", "intake", "shock", "plate")


def search_tasks(start: int, count: int) -> list[dict]:
    found = []
    for i in range(start, start + count):
        thing = WINGS[i % len(WINGS)]
        row = {"query": f"lift of {thing} {i}", "title": "", "text": f"tests of a {thing}, run {i}"}
        task = from_cranfield({**row, "grade": 1 + i % 4})
        found.append({**task, "source": ("cranfield", "liveqa_med")[i % 2]})
    return found


def bfcl_tasks(start: int, count: int) -> list[dict]:
    found = []
    for i in range(start, start + count):
        is_call = i % 3 > 0
        row = {
            "id": str(i),
            "category": "simple_python" if is_call else "irrelevance",
            "question": [[{"role": "user", "content": f"area for {i}?"}]],
            "function": [{"name": "area", "parameters": {"properties": {"r": {"type": "int"}}}}],
            "ground_truth": [{"area": {"r": [i]}}] if is_call else None,
        }
        found.append(from_bfcl(row))
    return found


def toolrl_tasks(start: int, count: int) -> list[dict]:
    return [
        from_toolrl(
            {
                "id": i,
                "instruction": "Tools: area(r). Answer in blocks.",
                "input": f"<user> area for {i}? </user>",
                "output": "<think> I call area. </think>\n<tool_call>\n"
                f'{{"name": "area", "parameters": {{"r": {i}}}}}\n</tool_call>',
            }
        )
        for i in range(start, start + count)
    ]


def write_files(folder: Path) -> Path:
    for name, make in (("search", search_tasks), ("bfcl", bfcl_tasks), ("toolrl", toolrl_tasks)):
        write_jsonl(make(0, 12), folder / f"{name}_train.jsonl")
        write_jsonl(make(12, 8), folder / f"{name}_held_out.jsonl")
    return folder
