"""The file `volunteers.db` of a state directory: an SQLite database that gateway and commands share."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAME = "volunteers.db"
BUSY_S = 5.0  # longest wait for another process
TABLES = """
CREATE TABLE IF NOT EXISTS invites (
    hash TEXT PRIMARY KEY, label TEXT NOT NULL, uses INTEGER NOT NULL, expires_at INTEGER NOT NULL,
    revoked TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE TABLE IF NOT EXISTS volunteers (
    address TEXT PRIMARY KEY, public_key TEXT NOT NULL, invite TEXT NOT NULL, label TEXT NOT NULL,
    software TEXT NOT NULL, device TEXT NOT NULL, state TEXT NOT NULL DEFAULT 'active',
    reason TEXT NOT NULL DEFAULT '', tasks INTEGER NOT NULL DEFAULT 0,
    completions INTEGER NOT NULL DEFAULT 0, tokens INTEGER NOT NULL DEFAULT 0,
    near_misses INTEGER NOT NULL DEFAULT 0, strikes TEXT NOT NULL DEFAULT '[]'
) STRICT;
CREATE TABLE IF NOT EXISTS ledger (
    seq INTEGER PRIMARY KEY, at INTEGER NOT NULL, kind TEXT NOT NULL, volunteer TEXT NOT NULL,
    body TEXT NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL
) STRICT;
"""


class DatabaseError(ValueError):
    """The state directory or its database cannot be used; the message is one line."""


class Database:
    """A connection. Each change is one transaction, which other processes see as a whole or not at all."""

    def __init__(self, directory: Path, create: bool = True):
        """Opens the database of a state directory. Raises DatabaseError if it is damaged or missing."""
        path = directory / NAME
        if not create and not path.is_file():
            raise DatabaseError(f"{directory} has no {NAME}: it is the directory of no gateway")
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._connection = sqlite3.connect(path, BUSY_S, isolation_level=None)
            path.chmod(0o600)
            self._connection.row_factory = sqlite3.Row
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=NORMAL")
            self._connection.executescript(TABLES)
            damage = self._connection.execute(f"PRAGMA {'quick_check' if create else 'schema_version'}")
            found = damage.fetchone()[0]
        except (OSError, sqlite3.Error) as error:
            raise DatabaseError(f"{path} cannot be used: {error}") from error
        if create and found != "ok":
            raise DatabaseError(f"{path} is damaged: {found}; put a copy back, or move it away")

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Yields the connection in a transaction that no other process's change can interrupt."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Lets all reads of the block see one state."""
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("COMMIT")

    def rows(self, query: str, *values: object) -> list[sqlite3.Row]:
        return self._connection.execute(query, values).fetchall()

    def each(self, query: str, *values: object) -> Iterator[sqlite3.Row]:
        """Yields rows without holding all of them in memory."""
        yield from self._connection.execute(query, values)
