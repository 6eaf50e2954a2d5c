"""Builds the answers with lists of rollouts."""

import sqlite3

from contracts.records import Completion, Rollout
from extensions.viewer.answers.overview import Answer, indexed, meaning
from extensions.viewer.index.filters import IN_FLIGHT, Filters
from extensions.viewer.one_line import shortened
from extensions.viewer.runs.opened import STREAMS, OpenRun
from pipelinerl.report.prompt_messages import asked_in
from pipelinerl.streams import StreamError

NAMES = ("train", "held-out")  # indexed by `held_out`
DROPPED = "dropped: "
READ = 2000  # most tokens that are decoded for a line


def rollouts(run: OpenRun, filters: Filters, after: str | None) -> Answer:
    """Returns the page of rollouts after the cursor `after`. Raises NoSuchCursorError."""
    queries = run.queries
    found = queries.page(filters, after)
    outcomes = [] if filters.held_out else [*queries.words("outcome"), IN_FLIGHT]
    return {
        "rows": [row_answer(row) | lines_of(run, row["held_out"], row["offset"]) for row in found.rows],
        "next": found.next,
        "total": run.following.progress.held_out if filters.held_out else run.following.progress.rollouts,
        "newest": queries.newest(filters.held_out),
        "choices": {
            "domain": queries.words("domain"),
            "status": queries.words("status"),
            "outcome": outcomes,
        },
        "indexed": indexed(run),
    }


def newer(run: OpenRun, held_out: bool, since: int) -> Answer:
    """Returns the number of rollouts recorded after the one at offset `since`."""
    return {"new": run.queries.count_since(held_out, since)}


def link_of(held_out: bool, offset: int | None) -> str | None:
    """Returns the path of a rollout in the API."""
    return None if offset is None else f"{NAMES[held_out]}/{offset}"


def row_answer(row: sqlite3.Row) -> Answer:
    """Converts a row of the index to an entry of a list."""
    outcome, reason = _outcome(row)
    first = row["first_version"]
    return {
        "r": link_of(row["held_out"], row["offset"]),
        "id": row["rollout_id"],
        "group": row["group_id"],
        "problem": row["problem"],
        "domain": row["domain"],
        "status": row["status"],
        "reward": row["reward"],
        "success": row["success"],
        "tokens": row["tokens"],
        "turns": row["turns"],
        "versions": [] if first is None else [first, row["last_version"]],
        "lag": None if outcome == IN_FLIGHT else row["lag"],  # its step may be undone or not closed yet
        "advantage": None if outcome == IN_FLIGHT else row["advantage"],
        "outcome": outcome,
        "reason": reason,
        "reason_means": meaning(reason),
        "trained_version": row["step"] + 1 if outcome == "trained" and row["step"] is not None else None,
        "started_at": row["started_at"],
        "finished_at": row["finished_at"],
        "seconds": row["finished_at"] - row["started_at"],
    }


def lines_of(run: OpenRun, held_out: bool, offset: int) -> Answer:
    """Returns what a rollout was asked, its last answer and its reason, a line each; None: not recorded."""
    try:
        record = run.reader(STREAMS[NAMES[held_out]]).at(offset)
    except StreamError:
        return {"asked": None, "answered": None, "why": None}
    assert isinstance(record, Rollout)
    why = record.reason and shortened(record.reason, from_end=False)
    if not record.completions:
        return {"asked": None, "answered": None, "why": why}
    first = record.completions[0].prompt_token_ids[-READ:].tolist()
    asked = asked_in([*run.parts(first)])
    answered = _text(run, record.completions[-1])
    return {
        "asked": shortened(asked, from_end=False),
        "answered": shortened(answered, from_end=True),
        "why": why,
    }


def _text(run: OpenRun, completion: Completion) -> str:
    parts = run.parts(completion.token_ids[-READ:].tolist())
    return "".join(text for text, is_special in parts if not is_special)


def judged(rollout: Rollout) -> Answer:
    """Returns the right answer, and why the rollout has its reward; None: not recorded."""
    return {"expected": rollout.expected, "why": rollout.reason}


def _outcome(row: sqlite3.Row) -> tuple[str | None, str | None]:
    """Returns the outcome of a rollout's group and its drop reason. Held-out rollouts have neither."""
    if row["held_out"]:
        return None, None
    outcome = row["outcome"] or IN_FLIGHT
    if outcome.startswith(DROPPED):
        return "dropped", outcome.removeprefix(DROPPED)
    return outcome, None
