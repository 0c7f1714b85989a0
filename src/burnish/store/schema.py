"""The tables of `run.db`, written for people who query them with plain SQL.

`samples` holds one row a rollout; `reward_parts` and `evidence` are its reward tree laid flat, under
names such as `total/format`; `token_values` holds numbers of its trained tokens. Everything a run
learns is append-only, and triggers keep it so: only `sessions`, one row a writer, is ever updated.
"""

from __future__ import annotations

VERSION = 1
"""Kept in `PRAGMA user_version`; a file with a higher number was written by a newer burnish."""

APPLICATION_ID = 0x62726E73
"""Kept in `PRAGMA application_id`: the letters "brns"."""

_TABLES = """
CREATE TABLE IF NOT EXISTS sessions (
    id INTEGER PRIMARY KEY,
    started TEXT NOT NULL,
    pid INTEGER NOT NULL,
    ended TEXT,
    status TEXT,
    summary TEXT NOT NULL DEFAULT '{}'
);
CREATE TABLE IF NOT EXISTS rollouts (
    step INTEGER PRIMARY KEY,
    samples INTEGER NOT NULL,
    time TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS evaluations (
    step INTEGER NOT NULL,
    name TEXT NOT NULL,
    samples INTEGER NOT NULL,
    summary TEXT NOT NULL,
    time TEXT NOT NULL,
    PRIMARY KEY (step, name)
);
CREATE TABLE IF NOT EXISTS samples (
    id TEXT PRIMARY KEY,
    trajectory_id TEXT NOT NULL,
    step INTEGER NOT NULL,
    split TEXT NOT NULL,
    idx INTEGER NOT NULL,
    task_id TEXT NOT NULL,
    group_key TEXT NOT NULL,
    role TEXT NOT NULL,
    prompt TEXT NOT NULL,
    response TEXT NOT NULL,
    finish TEXT NOT NULL,
    weight_version INTEGER NOT NULL,
    reward REAL,
    status TEXT NOT NULL,
    advantage REAL,
    keep INTEGER NOT NULL CHECK (keep IN (0, 1)),
    prompt_tokens INTEGER NOT NULL,
    response_tokens INTEGER NOT NULL,
    token_ids TEXT NOT NULL,
    loss_mask TEXT NOT NULL,
    logprobs TEXT NOT NULL,
    spans TEXT NOT NULL,
    task TEXT NOT NULL,
    reward_tree TEXT NOT NULL,
    info TEXT NOT NULL,
    UNIQUE (step, split, idx),
    CHECK ((reward IS NULL) = (status <> 'ok'))
);
CREATE INDEX IF NOT EXISTS samples_by_task ON samples (step / 16, task_id);
CREATE INDEX IF NOT EXISTS samples_by_trajectory ON samples (trajectory_id);
CREATE TABLE IF NOT EXISTS reward_parts (
    sample_id TEXT NOT NULL REFERENCES samples (id),
    name TEXT NOT NULL,
    value REAL,
    weight REAL NOT NULL,
    status TEXT NOT NULL,
    reason TEXT NOT NULL,
    PRIMARY KEY (sample_id, name),
    CHECK ((value IS NULL) = (status <> 'ok'))
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS evidence (
    sample_id TEXT NOT NULL REFERENCES samples (id),
    part TEXT NOT NULL,
    source TEXT NOT NULL,
    observation TEXT NOT NULL,
    visibility TEXT NOT NULL,
    error TEXT
);
CREATE INDEX IF NOT EXISTS evidence_by_sample ON evidence (sample_id);
CREATE TABLE IF NOT EXISTS token_values (
    sample_id TEXT NOT NULL REFERENCES samples (id),
    name TEXT NOT NULL,
    numbers TEXT NOT NULL,
    PRIMARY KEY (sample_id, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS metrics (
    step INTEGER NOT NULL,
    name TEXT NOT NULL,
    value REAL,
    PRIMARY KEY (step, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY,
    time TEXT NOT NULL,
    step INTEGER,
    kind TEXT NOT NULL,
    message TEXT NOT NULL,
    data TEXT NOT NULL
);
"""

OF_TASK = (
    "task_id = ? AND step / 16 IN "
    "(SELECT step / 16 FROM rollouts UNION SELECT step / 16 FROM evaluations)"
)
"""The condition on samples of one task, in the words of the index `samples_by_task`.

Tasks come in random order: in an index by task alone every prompt of a step would change a page of
its own, and the larger the file the more of them. Sixteen steps at a time share a few pages, and
looking a task up takes one search for each sixteen steps.
"""

APPEND_ONLY = (
    "rollouts",
    "evaluations",
    "samples",
    "reward_parts",
    "evidence",
    "token_values",
    "metrics",
    "events",
)


def statements() -> list[str]:
    """Everything that makes an empty file a `run.db`, for one transaction; safe to repeat."""
    tables = [statement for statement in _TABLES.split(";\n") if statement.strip()]
    triggers = [
        f"CREATE TRIGGER IF NOT EXISTS {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
        f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
        for table in APPEND_ONLY
        for verb in ("UPDATE", "DELETE")
    ]
    marks = [f"PRAGMA application_id = {APPLICATION_ID}", f"PRAGMA user_version = {VERSION}"]
    return [*tables, *triggers, *marks]
