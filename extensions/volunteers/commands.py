"""The commands of the operator, on the state directory. They work while the gateway runs."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from contracts.support.messages import printable
from contracts.support.terminal import print_any_text
from extensions.volunteers.gateway import ledger
from extensions.volunteers.gateway.database import Database, DatabaseError
from extensions.volunteers.gateway.options import STATE
from extensions.volunteers.gateway.registry import Registry
from extensions.volunteers.link import new_link

PLACE = "gateway.json"
MODULE = "extensions.volunteers"


def operate(argv: Sequence[str]) -> None:
    """Runs a command. Exits with a one-line message if it fails."""
    print_any_text()
    args = _parser().parse_args(argv)
    try:
        args.run(args)
    except DatabaseError as error:
        sys.exit(f"{args.command}: {error}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}")
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, run, help: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=help, description=help)
        added.add_argument(
            "--state", type=Path, default=Path(STATE), help="the gateway's --state; by default ./volunteers"
        )
        added.set_defaults(run=run)
        return added

    invite = command("invite", _invite, "Makes an invite link.")
    invite.add_argument("--label", required=True, help="for whom it is, as `list` shows it")
    invite.add_argument("--uses", type=int, default=1, help="machines that may join with it; by default 1")
    invite.add_argument("--days", type=float, default=7.0, help="for how long it can be used; by default 7")
    command("list", _list, "Lists the volunteers, and what each has done.")
    evict = command("evict", _evict, "Puts a volunteer out, and revokes its invite.")
    evict.add_argument("address")
    evict.add_argument("--why", required=True, help="what the volunteer is told")
    restore = command("restore", _restore, "Lets a volunteer in again that was slashed or evicted.")
    restore.add_argument("address")
    checked = command("ledger", _ledger, "Verifies the ledger's chain of hashes.")
    checked.add_argument("what", choices=["verify"])
    return parser


def _invite(args: argparse.Namespace) -> None:
    if args.uses < 1 or not 0 < args.days < 3650:
        raise DatabaseError("--uses is at least 1, and --days more than 0")
    try:
        place = json.loads((args.state / PLACE).read_text())
    except (OSError, ValueError):
        raise DatabaseError(
            f"{args.state} has no {PLACE}: no gateway has started with this --state"
        ) from None
    link = new_link(place["url"], place["public_key"])
    Registry(Database(args.state, create=False)).invite(link.secret, args.label, args.uses, args.days)
    print(link.text)


def _list(args: argparse.Namespace) -> None:
    row = "{:<16}  {:<16}  {:<8}  {:>6}  {:>11}  {:>7}  {}"
    print(row.format("address", "label", "state", "tasks", "completions", "strikes", "reason"))
    for each in Registry(Database(args.state, create=False)).every():
        counts = each.tasks, each.completions, each.recent_strikes
        told = (each.address, each.label, each.state, *counts, each.reason)
        print(printable(row.format(*told).rstrip()))


def _evict(args: argparse.Namespace) -> None:
    Registry(Database(args.state, create=False)).put_out(args.address, "evicted", args.why)
    print(f"{args.address} gets no tasks any more, and its invite is revoked")


def _restore(args: argparse.Namespace) -> None:
    Registry(Database(args.state, create=False)).restore(args.address)
    print(f"{args.address} gets tasks again; its invite stays revoked")


def _ledger(args: argparse.Namespace) -> None:
    database = Database(args.state, create=False)
    count = ledger.verify(database)
    print(f"{count} entries, the last one {ledger.head(database)[1]}")
