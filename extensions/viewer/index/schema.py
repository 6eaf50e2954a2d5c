"""Opens the SQLite file of an index. A damaged file, or one with another schema, is replaced."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

SCHEMA = 4  # increase it when the tables change
TABLES = """
CREATE TABLE positions (stream TEXT PRIMARY KEY, offset INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE words (id INTEGER PRIMARY KEY, kind TEXT NOT NULL, word TEXT NOT NULL, UNIQUE (kind, word));
CREATE TABLE rollouts (
    held_out INTEGER NOT NULL, offset INTEGER NOT NULL, rollout_id TEXT NOT NULL, group_id INTEGER NOT NULL,
    problem TEXT NOT NULL, domain INTEGER NOT NULL, status INTEGER NOT NULL, outcome INTEGER,
    reward REAL NOT NULL, success REAL, tokens INTEGER NOT NULL, turns INTEGER NOT NULL,
    first_version INTEGER, last_version INTEGER, started_at REAL NOT NULL, finished_at REAL NOT NULL,
    PRIMARY KEY (held_out, offset)
) WITHOUT ROWID;
CREATE TABLE groups (
    held_out INTEGER NOT NULL, group_id INTEGER NOT NULL, least REAL NOT NULL, most REAL NOT NULL,
    PRIMARY KEY (held_out, group_id)
) WITHOUT ROWID;
CREATE INDEX by_difference ON groups (held_out, least < most, group_id);
CREATE TABLE trainings (
    rollout_id TEXT PRIMARY KEY, row_offset INTEGER NOT NULL, -- of its first row in the step
    step INTEGER NOT NULL, advantage REAL NOT NULL, lag INTEGER, sampled INTEGER NOT NULL,
    row_index INTEGER NOT NULL -- of its last row in the step
) WITHOUT ROWID;
CREATE TABLE servers (
    url TEXT PRIMARY KEY, requests INTEGER NOT NULL, tokens INTEGER NOT NULL, aborted INTEGER NOT NULL,
    last_at REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE loads ( -- time that requests took, by second, by minute, and by the version that sampled then
    length INTEGER NOT NULL, -- 1 or 60 seconds
    second INTEGER NOT NULL, -- the first one
    url TEXT NOT NULL, version INTEGER NOT NULL, busy_s REAL NOT NULL,
    PRIMARY KEY (length, second, url, version)
) WITHOUT ROWID;
CREATE TABLE versions (
    held_out INTEGER NOT NULL, version INTEGER NOT NULL,
    first_end INTEGER, -- least offset of a rollout whose last version it is
    last_start INTEGER, -- greatest offset of a rollout whose first version it is
    PRIMARY KEY (held_out, version)
) WITHOUT ROWID;
CREATE INDEX by_group ON rollouts (held_out, group_id);
CREATE INDEX by_status ON rollouts (held_out, status);
CREATE INDEX by_outcome ON rollouts (held_out, outcome);
"""
# Created once all records are indexed: that takes a fifth of the time of updating them with each record.
INDEXES = """
CREATE INDEX IF NOT EXISTS by_reward ON rollouts (held_out, reward);
CREATE INDEX IF NOT EXISTS by_tokens ON rollouts (held_out, tokens);
CREATE INDEX IF NOT EXISTS by_end ON rollouts (held_out, finished_at);
PRAGMA analysis_limit = 1000;
ANALYZE;
"""


def open_to_write(path: Path) -> sqlite3.Connection:
    """Returns a connection to the index at `path`. Creates the index if it does not exist."""
    if path.exists() and not _is_current(path):
        delete(path)
    connection = _open(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = OFF")  # an index damaged by a power failure is rebuilt
    if not _schema_of(connection):
        connection.executescript(f"BEGIN; {TABLES} PRAGMA user_version = {SCHEMA}; COMMIT;")
    return connection


def delete(path: Path) -> None:
    """Deletes the index and its journal."""
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


def open_to_read(path: Path) -> sqlite3.Connection:
    """Returns a read-only connection. Raises sqlite3.OperationalError if the index does not exist."""
    connection = _open(path, "?mode=ro")
    connection.execute("PRAGMA query_only = ON")
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Runs the block in a transaction, which is rolled back if the block raises."""
    connection.execute("BEGIN")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _open(path: Path, mode: str = "") -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}{mode}"
    connection = sqlite3.connect(uri, check_same_thread=False, isolation_level=None, timeout=30, uri=True)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA cache_size = -8192")  # 8 MiB
    return connection


def _is_current(path: Path) -> bool:
    try:
        with closing(sqlite3.connect(path)) as connection:
            is_sound = connection.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok"
            return is_sound and _schema_of(connection) == SCHEMA
    except sqlite3.DatabaseError:
        return False


def _schema_of(connection: sqlite3.Connection) -> int:
    return connection.execute("PRAGMA user_version").fetchone()[0]
