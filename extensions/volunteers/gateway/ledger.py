"""The ledger: what was registered, accepted and refused, in entries that are chained by their hashes.

An entry's hash covers the hash before it, so that a changed, removed or added entry breaks the chain. Who
keeps the signed head that the gateway published also sees that the whole chain was written anew.
"""

import hashlib
import sqlite3
import time
from collections.abc import Iterable
from typing import Any, Literal

from extensions.stored_weights.store.manifest import canonical
from extensions.volunteers.gateway.database import Database, DatabaseError

Kind = Literal["registered", "accepted", "refused", "expired", "returned", "slashed", "evicted", "restored"]
START = "0" * 64
STATE_AFTER = {"registered": "active", "slashed": "slashed", "evicted": "evicted", "restored": "active"}


def hash_of(seq: int, at: int, kind: str, volunteer: str, body: str, previous: str) -> str:
    return hashlib.sha256(canonical([seq, at, kind, volunteer, body, previous])).hexdigest()


def sha256_of_ids(token_ids: Iterable[int]) -> str:
    """Returns the SHA-256 of token ids as little-endian int32."""
    return hashlib.sha256(b"".join(each.to_bytes(4, "little") for each in token_ids)).hexdigest()


def append(connection: sqlite3.Connection, kind: Kind, volunteer: str, body: dict[str, Any]) -> None:
    """Adds an entry, within the caller's transaction."""
    last = connection.execute("SELECT seq, hash FROM ledger ORDER BY seq DESC LIMIT 1").fetchone()
    seq, previous = (last["seq"] + 1, last["hash"]) if last else (1, START)
    at = int(time.time())
    text = canonical(body).decode()
    connection.execute(
        "INSERT INTO ledger VALUES (?, ?, ?, ?, ?, ?, ?)",
        (seq, at, kind, volunteer, text, previous, hash_of(seq, at, kind, volunteer, text, previous)),
    )


def head(database: Database) -> tuple[int, str]:
    """Returns number and hash of the last entry; (0, START) of an empty ledger."""
    rows = database.rows("SELECT seq, hash FROM ledger ORDER BY seq DESC LIMIT 1")
    return (rows[0]["seq"], rows[0]["hash"]) if rows else (0, START)


def verify(database: Database) -> int:
    """Returns the number of entries. Raises DatabaseError, which names the first one that is wrong.

    It also compares the states of volunteers with those that the entries lead to.
    """
    with database.snapshot():
        return _verify(database)


def _verify(database: Database) -> int:
    previous = START
    count = 0
    states: dict[str, str] = {}
    for row in database.each("SELECT * FROM ledger ORDER BY seq"):
        count += 1
        expected = hash_of(count, row["at"], row["kind"], row["volunteer"], row["body"], previous)
        if (row["seq"], row["previous"], row["hash"]) != (count, previous, expected):
            raise DatabaseError(
                f"entry {row['seq']} of the ledger is wrong: it was changed, or one is missing"
            )
        previous = row["hash"]
        if state := STATE_AFTER.get(row["kind"]):
            states[row["volunteer"]] = state
    for row in database.each("SELECT address, state FROM volunteers ORDER BY address"):
        if states.pop(row["address"], None) != row["state"]:
            raise DatabaseError(
                f"volunteer {row['address']} is {row['state']}, which the ledger does not say"
            )
    if states:
        raise DatabaseError(f"volunteer {min(states)} is missing, and the ledger has it")
    return count
