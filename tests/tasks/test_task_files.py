"""Files of rows: mapping, splits, duplicates, fingerprints, and one line for each broken file."""

import contextlib
import json

import pytest
from hypothesis import given, settings, strategies as st

from burnish.errors import UserError
from burnish.tasks import File, HeldOutColumn, HeldOutFile, HeldOutShare, content_key, load_file

ROWS = [{"question": f"What is {k} + 1?", "answer": str(k + 1)} for k in range(40)]
NOTHING_HELD_OUT = HeldOutShare(0.0)


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def load(folder, seed=0, **chosen):
    defaults = {"path": "d.jsonl", "prompt": "question", "fields": {"answer": "answer"}}
    return load_file(File(**{**defaults, **chosen}), seed, folder)


def prompts(tasks):
    return sorted(task.prompt for task in tasks)


@pytest.mark.parametrize("form", ["jsonl", "json", "csv", "tsv", "parquet"])
def test_every_format_gives_the_same_tasks(tmp_path, form):
    path = tmp_path / f"d.{form}"
    if form == "jsonl":
        write(path, ROWS)
    elif form == "json":
        path.write_text(json.dumps(ROWS))
    elif form == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(ROWS), path)
    else:
        comma = "," if form == "csv" else "\t"
        lines = [comma.join(f'"{cell}"' for cell in row.values()) for row in ROWS]
        path.write_text("\n".join([comma.join(["question", "answer"]), *lines]))
    tasks = load(tmp_path, path=path.name)
    assert prompts(tasks.train_tasks + tasks.held_out_tasks) == sorted(r["question"] for r in ROWS)
    for task in tasks.sample(40):
        assert int(task.fields["answer"]) == int(task.prompt.split()[2]) + 1


def test_nested_columns_json_text_templates_and_system(tmp_path):
    row = {
        "q": "2+2", "reward_model": '{"ground_truth": "4", "style": "rule"}', "choices": ["3", "4"],
        "a.b": "dotted",
    }  # fmt: skip
    write(tmp_path / "d.jsonl", [row])
    tasks = load(
        tmp_path, prompt="Question: {q} {{of {reward_model.style}}}",
        template="{prompt}\nFirst: {choices.0}", system="Be brief.",
        fields={"answer": "reward_model.ground_truth", "second": "choices.1", "odd": "a.b"},
        held_out=NOTHING_HELD_OUT,
    )  # fmt: skip
    task = tasks.train(0)
    assert [m.role for m in task.messages] == ["system", "user"]
    assert task.prompt == "Question: 2+2 {of rule}\nFirst: 3"
    assert task.fields == {"answer": "4", "second": "4", "odd": "dotted"}
    assert task.for_judge().fields == {}


def test_values_are_never_read_as_templates(tmp_path):
    write(tmp_path / "d.jsonl", [{"question": "{answer} {0}", "answer": "secret"}])
    tasks = load(tmp_path, template="Q: {prompt}", held_out=NOTHING_HELD_OUT)
    assert tasks.train(0).prompt == "Q: {answer} {0}"


def test_chat_messages_with_nulls_and_own_system(tmp_path):
    turns = [
        {"role": "system", "content": "old", "tool_calls": None, "name": None},
        {"role": "user", "content": "hi", "tool_calls": None, "name": None},
    ]
    write(tmp_path / "d.jsonl", [{"chat": turns}, {"chat": json.dumps(turns[1:])}])
    tasks = load(
        tmp_path, prompt="", messages="chat", fields={}, system="new", held_out=NOTHING_HELD_OUT
    )
    assert [[m.content for m in t.messages] for t in tasks.train_tasks] == [["new", "hi"]] * 2


def test_labels_can_be_narrowed_and_fields_optional(tmp_path):
    write(tmp_path / "d.jsonl", [{**row, "topic": "sums"} for row in ROWS[:3]])
    fields = {"answer": "answer", "topic": "topic", "hint": "hint"}
    tasks = load(tmp_path, fields=fields, optional=("hint",), labels=("answer",))
    assert tasks.train(0).for_judge().fields == {"topic": "sums", "hint": None}
    assert tasks.fields == {"answer", "topic", "hint"}


@settings(deadline=None)
@given(share=st.floats(0.01, 0.9), copies=st.integers(1, 3), size=st.integers(2, 40))
def test_share_never_puts_one_prompt_on_both_sides(tmp_path_factory, share, copies, size):
    folder = tmp_path_factory.mktemp("share")
    write(folder / "d.jsonl", ROWS[:size] * copies)
    tasks = load(folder, held_out=HeldOutShare(share))
    trained = {content_key(task.messages) for task in tasks.train_tasks}
    held_out = {content_key(task.messages) for task in tasks.held_out()}
    assert trained
    assert held_out
    assert not trained & held_out
    assert len(trained | held_out) == size


def test_appending_rows_moves_nothing_between_the_sides(tmp_path):
    write(tmp_path / "d.jsonl", ROWS[:30])
    before = load(tmp_path, held_out=HeldOutShare(0.3))
    write(tmp_path / "d.jsonl", ROWS)
    after = load(tmp_path, held_out=HeldOutShare(0.3))
    assert set(prompts(before.held_out())) <= set(prompts(after.held_out()))
    assert set(prompts(before.train_tasks)) <= set(prompts(after.train_tasks))


def test_held_out_file_wins_over_training_rows_that_repeat_it(tmp_path):
    write(tmp_path / "d.jsonl", ROWS[:10])
    write(tmp_path / "test.jsonl", [*ROWS[8:9], *ROWS[20:22]])
    tasks = load(tmp_path, held_out=HeldOutFile("test.jsonl"))
    assert tasks.train_size == 9
    assert prompts(tasks.held_out()) == sorted(r["question"] for r in [ROWS[8], *ROWS[20:22]])
    assert tasks.notes == ("d.jsonl: 1 training rows left out because their prompt is held out.",)


def test_held_out_by_column_down_to_one_row(tmp_path):
    rows = [{**row, "info": {"split": "test" if k == 5 else "train"}} for k, row in enumerate(ROWS)]
    write(tmp_path / "d.jsonl", rows)
    tasks = load(tmp_path, held_out=HeldOutColumn("info.split", ("test",)))
    assert [task.id for task in tasks.held_out()] == ["d/6"]
    assert tasks.train_size == 39


def test_duplicates_are_counted(tmp_path):
    write(tmp_path / "d.jsonl", ROWS[:5] + ROWS[:2])
    tasks = load(tmp_path, held_out=NOTHING_HELD_OUT)
    assert tasks.train_size == 7
    assert tasks.notes == (
        "d.jsonl: 2 of 7 rows repeat a prompt in training, where each row is a task of its own.",
    )


def test_repeated_prompts_that_are_held_out_are_kept_once(tmp_path):
    rows = [{**row, "side": "test" if k < 3 else "train"} for k, row in enumerate(ROWS[:6])]
    write(tmp_path / "d.jsonl", [*rows, rows[0], rows[5]])
    tasks = load(tmp_path, held_out=HeldOutColumn("side", ("test",)))
    assert (tasks.train_size, len(tasks.held_out())) == (4, 3)
    assert tasks.notes == (
        "d.jsonl: 1 of 4 rows repeat a prompt in training, where each row is a task of its own.",
        "d.jsonl: 1 of 4 rows repeat a prompt held out, where the first row of a prompt is kept.",
    )


def test_bad_rows_can_be_skipped_and_are_counted(tmp_path):
    write(tmp_path / "d.jsonl", [*ROWS[:3], {"question": None, "answer": "1"}, {"question": "x"}])
    tasks = load(tmp_path, bad_rows="skip", held_out=NOTHING_HELD_OUT)
    assert tasks.train_size == 3
    assert tasks.notes[0].startswith("d.jsonl: 2 of 5 rows skipped (")
    assert "d.jsonl:4: 'question' is NoneType, expected text" in tasks.notes[0]


@settings(deadline=None)
@given(position=st.integers(0, 10_000))
def test_fingerprint_changes_with_any_byte(tmp_path_factory, position):
    folder = tmp_path_factory.mktemp("bytes")
    path = write(folder / "d.jsonl", [{**row, "unused": "x" * 9} for row in ROWS[:4]])
    before = load(folder, bad_rows="skip")
    content = bytearray(path.read_bytes())
    position %= len(content)
    content[position] = ord("y") if content[position] != ord("y") else ord("z")
    path.write_bytes(content)
    try:
        after = load(folder, bad_rows="skip")
    except UserError:
        return  # the byte broke a column name that every row needs
    assert after.fingerprint != before.fingerprint


def test_fingerprint_follows_content_and_mapping_and_not_place_or_seed(tmp_path):
    write(tmp_path / "d.jsonl", ROWS)
    (tmp_path / "moved").mkdir()
    write(tmp_path / "moved" / "other.jsonl", ROWS)
    first = load(tmp_path, name="n").fingerprint
    assert load(tmp_path, seed=5, path="moved/other.jsonl", name="n").fingerprint == first
    assert load(tmp_path, name="n", system="Be brief.").fingerprint != first
    assert load(tmp_path, name="n", held_out=HeldOutShare(0.2)).fingerprint != first


def test_same_seed_same_order_and_ids_from_a_column(tmp_path):
    write(tmp_path / "d.jsonl", [{**row, "uid": f"u{k}"} for k, row in enumerate(ROWS)])
    one, again, other = (load(tmp_path, seed=seed, id="uid") for seed in (1, 1, 2))
    assert one.sample(40) == again.sample(40)
    assert one.sample(40) != other.sample(40)
    assert one.held_out() == other.held_out()
    assert one.train(0).id.startswith("d/u")


GOOD = json.dumps(ROWS[0])
BROKEN = {
    "no such file": ("d.jsonl", None, {}, "d.jsonl: No such file or directory. Did you mean 'd.json'?"),
    "empty file": ("d.jsonl", b" \n", {}, "no rows; expected at least one"),
    "unknown ending": ("d.jsonx", b"{}", {}, "cannot tell the format from '.jsonx'; expected .jsonl"),
    "not UTF-8": ("d.jsonl", GOOD.encode() + b'\n{"question": "\xff"}', {}, "d.jsonl:2: not UTF-8 (byte 0xff)"),
    "half a line": ("d.jsonl", GOOD.encode() + b'\n{"question": ', {}, "d.jsonl:2: not JSON (Input data was truncated)"),
    "a list, not an object": ("d.jsonl", GOOD.encode() + b"\n[1]", {}, "d.jsonl:2: got a list, expected an object"),
    "one object as JSON": ("d.json", GOOD.encode(), {}, "expected an array"),
    "no rows in an array": ("d.json", b"[]", {}, "no rows; expected at least one"),
    "JSON lines named .json": ("d.json", f"{GOOD}\n{GOOD}".encode(), {}, "for lines: format = 'jsonl'"),
    "CSV cell count": ("d.csv", b"question,answer\n1+1,2\n1+2,3,4\n", {}, "d.csv:3: 3 cells, expected 2 (question, answer)"),
    "CSV column named twice": ("d.csv", b"question,question\n1,2\n", {}, "column names ['question', 'question']; expected each named once"),
    "not Parquet": ("d.parquet", b"PAR1 nonsense", {}, "not a readable Parquet file"),
    "two wrong columns": (
        "d.jsonl",
        GOOD.encode(),
        {"prompt": "questoin", "fields": {"answer": "anwser", "topic": "zzz"}},
        "no column 'questoin' (did you mean 'question'?), 'anwser' (did you mean 'answer'?), 'zzz'; the file has question, answer",
    ),
    "wrong nested column": (
        "d.jsonl",
        b'{"q": "x", "rm": {"ground_truth": "1"}}',
        {"prompt": "q", "fields": {"answer": "rm.ground_thruth"}},
        "no column 'rm.ground_thruth' (did you mean 'rm.ground_truth'?)",
    ),
    "null answer": ("d.jsonl", f'{GOOD}\n{{"question": "x", "answer": null}}'.encode(), {}, "d.jsonl:2: 'answer' is null, expected a value"),
    "empty prompt": ("d.jsonl", f'{GOOD}\n{{"question": " ", "answer": "1"}}'.encode(), {}, "d.jsonl:2: the prompt is empty, expected text"),
    "text for messages": ("d.jsonl", GOOD.encode(), {"prompt": "", "messages": "question"}, "'question' is not a list of chat messages"),
    "messages without roles": ("d.jsonl", b'{"chat": [{"from": "human", "value": "x"}]}', {"prompt": "", "messages": "chat", "fields": {}}, "missing required field `role`"),
    "prompt and messages": ("d.jsonl", GOOD.encode(), {"messages": "question"}, "prompt: got both it and messages, expected exactly one"),
    "bare braces": ("d.jsonl", GOOD.encode(), {"template": r"{prompt} in \boxed{}"}, "'{}' does not name a column. Double plain braces"),
    "label that is no field": ("d.jsonl", GOOD.encode(), {"labels": ("anser",)}, "labels names 'anser', which is not in fields (answer). Did you mean 'answer'?"),
    "repeated id": ("d.jsonl", f"{GOOD}\n{GOOD}".encode(), {"id": "answer"}, "d.jsonl:2: id '1' is also that of row 1"),
    "one row to split": ("d.jsonl", GOOD.encode(), {"held_out": HeldOutShare(0.1)}, "one prompt cannot be split"),
    "split column missing": ("d.jsonl", GOOD.encode(), {"held_out": HeldOutColumn("splt", ("test",))}, "no 'splt' of [] in ['test']"),
    "split value missing": ("d.jsonl", GOOD.encode(), {"held_out": HeldOutColumn("answer", ("2",))}, "no 'answer' of ['1'] in ['2']"),
    "all rows held out": ("d.jsonl", GOOD.encode(), {"held_out": HeldOutColumn("answer", ("1",))}, "no training row is left: every row is held out"),
    "nothing left after skipping": ("d.jsonl", b"[1]\n[2]", {"bad_rows": "skip"}, "no usable row (2 skipped)"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files_get_one_line(tmp_path, case):
    name, content, chosen, message = BROKEN[case]
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    if content is None:
        (tmp_path / "d.json").write_text("[]")
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        load(tmp_path, path=name, **{"held_out": NOTHING_HELD_OUT, **chosen})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_that_unpacks_to_more_than_is_held_is_one_line(tmp_path, monkeypatch):
    pyarrow = pytest.importorskip("pyarrow")
    packed = pyarrow.array(["x" * 100_000]).take(pyarrow.array([0] * 1_000))
    path, table = tmp_path / "d.parquet", pyarrow.table({"question": packed})
    pytest.importorskip("pyarrow.parquet").write_table(table, path, compression="zstd")
    assert path.stat().st_size < 10_000
    monkeypatch.setattr("burnish.tasks.rows.MOST_BYTES", 1 << 26)
    with pytest.raises(UserError, match=r"d\.parquet: more than 64 MiB unpacked"):
        load(tmp_path, path="d.parquet", fields={})


@pytest.mark.parametrize("codec", ["snappy", "gzip", "zstd", "brotli", "lz4"])
def test_damaged_pages_are_one_line(tmp_path, codec):
    pyarrow = pytest.importorskip("pyarrow")
    path = tmp_path / "d.parquet"
    rows = [{"question": f"{k * 7919 % 10_007} + {k}?", "answer": str(k)} for k in range(3_000)]
    table = pyarrow.Table.from_pylist(rows)
    pytest.importorskip("pyarrow.parquet").write_table(table, path, compression=codec)
    whole = path.read_bytes()
    for place in range(20, 2_000, 97):
        path.write_bytes(
            whole[:place] + bytes(b ^ 0x5A for b in whole[place : place + 40]) + whole[place + 40 :]
        )
        with contextlib.suppress(UserError):
            load(tmp_path, path="d.parquet", bad_rows="skip")


@pytest.mark.parametrize("depth", [300, 10_000])
@pytest.mark.parametrize("form", ["jsonl", "json"])
def test_rows_nested_without_measure_are_one_line(tmp_path, form, depth):
    row = '{"question": "q?", "answer": %s}' % ("[" * depth + "]" * depth)
    (tmp_path / f"d.{form}").write_text(row if form == "jsonl" else f"[{row}]")
    with pytest.raises(UserError, match=r"nested (too deeply|more than 200 levels deep)") as caught:
        load(tmp_path, path=f"d.{form}")
    assert "\n" not in str(caught.value)


def test_a_row_with_many_brackets_and_little_depth_is_fine(tmp_path):
    answer = [[i] for i in range(500)]
    write(tmp_path / "d.jsonl", [{**row, "answer": answer} for row in ROWS])
    assert load(tmp_path).train(0).fields["answer"] == answer


def test_columns_named_prompt_and_others_need_no_mapping(tmp_path):
    rows = [{"prompt": f"{n}?", "answer": str(n), "note": None} for n in range(9)]
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = File(path=str(path)).build(0, tmp_path)
    assert tasks.fields == {"answer", "note"}
    asked = {task.messages[0].text: task.fields for task in tasks.train_tasks}
    first = next(iter(asked))
    assert asked[first] == {"answer": first[:-1], "note": None}
    assert tasks.train_tasks[0].labels == ("answer", "note")
