"""The volunteers of a run and their invites, in the database. Each change has its entry in the ledger."""

import hashlib
import json
import time
from dataclasses import dataclass

from contracts.channel import PublicKey
from extensions.volunteers.gateway import ledger
from extensions.volunteers.gateway.database import Database, DatabaseError
from extensions.volunteers.messages import Register

STRIKES = 3  # within as many tasks as `STRIKE_TASKS` slash a volunteer
STRIKE_TASKS = 100
DAY_S = 86400


class NotAllowedError(ValueError):
    """An invite or a volunteer that is refused; the message is one line for the volunteer."""


@dataclass(frozen=True)
class Volunteer:
    """A row of the table. strikes: numbers of the tasks that brought one. tokens: that were accepted."""

    address: str
    public_key: str
    invite: str
    label: str
    software: str
    device: str
    state: str  # active, slashed or evicted
    reason: str
    tasks: int
    completions: int
    tokens: int
    near_misses: int
    strikes: str

    @property
    def key(self) -> PublicKey:
        return PublicKey(id=self.address, ed25519=self.public_key)

    @property
    def recent_strikes(self) -> int:
        return sum(at > self.tasks - STRIKE_TASKS for at in json.loads(self.strikes))


def address_of(public_key: str) -> str:
    """Returns the address of a public key, which is its id in signatures."""
    return hashlib.sha256(bytes.fromhex(public_key)).hexdigest()[:16]


def hash_of_secret(secret: str) -> str:
    return hashlib.sha256(bytes.fromhex(secret)).hexdigest()


class Registry:
    """Reads and changes the tables of a state directory."""

    def __init__(self, database: Database):
        self.database = database

    # --- invites ----------------------------------------------------------------------------------

    def invite(self, secret: str, label: str, uses: int, days: float) -> None:
        """Adds an invite. Only the hash of its secret is stored."""
        expires_at = int(time.time() + days * DAY_S)
        with self.database.transaction() as connection:
            connection.execute(
                "INSERT INTO invites (hash, label, uses, expires_at) VALUES (?, ?, ?, ?)",
                (hash_of_secret(secret), label, uses, expires_at),
            )

    def register(self, message: Register) -> Volunteer:
        """Adds a volunteer, or returns it if it is known. Raises NotAllowedError."""
        address = address_of(message.public_key)
        if known := self.find(address):
            self._check(known)
            if known.public_key != message.public_key:
                raise NotAllowedError("another key has this address: make a new one")
            return known
        invite = hash_of_secret(message.invite)
        with self.database.transaction() as connection:
            rows = connection.execute("SELECT * FROM invites WHERE hash = ?", (invite,)).fetchall()
            if not rows:
                raise NotAllowedError("this invite is not one of this gateway's: ask the operator for a link")
            row = rows[0]
            if row["revoked"]:
                raise NotAllowedError(f"this invite was revoked: {row['revoked']}; ask the operator")
            if row["expires_at"] < time.time():
                raise NotAllowedError("this invite has expired: ask the operator for a new link")
            if row["uses"] < 1:
                raise NotAllowedError("this invite is used up: ask the operator for a new link")
            connection.execute("UPDATE invites SET uses = uses - 1 WHERE hash = ?", (invite,))
            connection.execute(
                "INSERT INTO volunteers (address, public_key, invite, label, software, device) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (address, message.public_key, invite, row["label"], message.software, message.device),
            )
            ledger.append(connection, "registered", address, {"public_key": message.public_key})
        return self.get(address)

    # --- volunteers -------------------------------------------------------------------------------

    def find(self, address: str) -> Volunteer | None:
        rows = self.database.rows("SELECT * FROM volunteers WHERE address = ?", address)
        return Volunteer(**dict(rows[0])) if rows else None

    def get(self, address: str) -> Volunteer:
        """Raises DatabaseError if there is no such volunteer."""
        found = self.find(address)
        if found is None:
            raise DatabaseError(f"there is no volunteer {address}; `list` names them")
        return found

    def every(self) -> list[Volunteer]:
        return [
            Volunteer(**dict(row)) for row in self.database.rows("SELECT * FROM volunteers ORDER BY label")
        ]

    def allowed(self, address: str) -> Volunteer | None:
        """Returns the volunteer, None if it is unknown. Raises NotAllowedError if it was put out."""
        found = self.find(address)
        if found is not None:
            self._check(found)
        return found

    def _check(self, volunteer: Volunteer) -> None:
        if volunteer.state != "active":
            raise NotAllowedError(
                f"volunteer {volunteer.address} was {volunteer.state}: {volunteer.reason}; the operator of "
                "the run can restore it"
            )

    def put_out(self, address: str, state: str, reason: str) -> None:
        """Slashes or evicts a volunteer, and revokes its invite. Raises DatabaseError if it is unknown."""
        volunteer = self.get(address)
        with self.database.transaction() as connection:
            self._put_out(connection, volunteer, state, reason)

    def _put_out(self, connection, volunteer: Volunteer, state: str, reason: str) -> None:
        connection.execute(
            "UPDATE volunteers SET state = ?, reason = ? WHERE address = ?",
            (state, reason, volunteer.address),
        )
        why = f"volunteer {volunteer.address} was {state}"
        connection.execute("UPDATE invites SET revoked = ? WHERE hash = ?", (why, volunteer.invite))
        body = {"reason": reason} if state == "slashed" else {}  # what an operator wrote is not public
        ledger.append(connection, state, volunteer.address, body)

    def restore(self, address: str) -> None:
        """Lets a volunteer in again, with no strike and no near miss. Its invite stays revoked."""
        self.get(address)
        with self.database.transaction() as connection:
            connection.execute(
                "UPDATE volunteers SET state = 'active', reason = '', strikes = '[]', tokens = 0, "
                "near_misses = 0 WHERE address = ?",
                (address,),
            )
            ledger.append(connection, "restored", address, {})

    # --- tasks ------------------------------------------------------------------------------------

    def accept(self, address: str, body: dict, completions: int, tokens: int, near_misses: int) -> None:
        """Records a task that passed the audit."""
        with self.database.transaction() as connection:
            connection.execute(
                "UPDATE volunteers SET tasks = tasks + 1, completions = completions + ?, "
                "tokens = tokens + ?, near_misses = near_misses + ? WHERE address = ?",
                (completions, tokens, near_misses, address),
            )
            ledger.append(connection, "accepted", address, body)

    def refuse(self, address: str, body: dict, penalty: str, reason: str) -> str:
        """Records a refused task. penalty: slash, strike or none. Returns the volunteer's state after it."""
        volunteer = self.get(address)
        tasks = volunteer.tasks + 1
        strikes = [at for at in json.loads(volunteer.strikes) if at > tasks - STRIKE_TASKS]
        strikes += [tasks] if penalty == "strike" else []
        slashed = penalty == "slash" or len(strikes) >= STRIKES
        if penalty == "strike" and slashed:
            reason = f"{len(strikes)} strikes in {STRIKE_TASKS} tasks, the last one: {reason}"
        with self.database.transaction() as connection:
            connection.execute(
                "UPDATE volunteers SET tasks = ?, strikes = ? WHERE address = ?",
                (tasks, json.dumps(strikes), address),
            )
            ledger.append(connection, "refused", address, body)
            if slashed and volunteer.state == "active":
                self._put_out(connection, volunteer, "slashed", reason)
        return "slashed" if slashed else volunteer.state

    def note(self, kind: ledger.Kind, address: str, body: dict) -> None:
        """Records a task that was not delivered: expired or returned."""
        with self.database.transaction() as connection:
            ledger.append(connection, kind, address, body)
