"""Builds the answers about one group and its members, and about the outcomes of all groups."""

import contextlib
from collections import Counter
from collections.abc import Sequence

from contracts.records import Rollout
from extensions.viewer.answers.overview import Answer, meaning
from extensions.viewer.answers.rollouts import judged, row_answer
from extensions.viewer.answers.turns import prompt_of
from extensions.viewer.records.group_history import read_history
from extensions.viewer.records.group_story import story_lines
from extensions.viewer.runs.opened import OpenRun
from pipelinerl.report.accounting import GroupAccounts
from pipelinerl.report.prompt_messages import Part, messages_of
from pipelinerl.streams import StreamError
from pipelinerl.streams.drop_reasons import meaning_of

TEXT = 2000  # most characters of a member's text
BINS = 300  # in the chart of outcomes by version


class NoSuchGroupError(LookupError):
    """No group with this id has started."""


def group(run: OpenRun, number: int) -> Answer:
    """Returns a training group with its members. Raises NoSuchGroupError."""
    with run.lock:
        accounts = run.following.state.accounts
        started = accounts.started.get(number)
        if started is None:
            raise NoSuchGroupError(f"no group {number} has started in this run")
        settlement = accounts.settlement_of(number)
        undone = accounts.undone.get(number, [])
        exists = {at: at in accounts.started for at in (number - 1, number + 1)}
    rows = run.queries.of_group(False, number)
    members = [row_answer(row) | _texts(run, row["offset"]) for row in rows]
    prompt = _prompt(run, [row["offset"] for row in rows])
    reason = settlement.reason if settlement else None
    return {
        "id": number,
        "problem": started.problem,
        "draw": started.draw,
        "started_at": started.at or None,
        "version": started.version,
        "rollouts": started.rollouts,
        "outcome": "in flight" if settlement is None else "dropped" if reason else "trained",
        "reason": reason,
        "reason_means": meaning(reason),
        "trained_version": settlement.version if settlement else None,
        "undone": undone,
        "prompt": prompt,
        "messages": messages_of(prompt),
        "expected": next((member["expected"] for member in members if member["expected"]), None),
        "members": members,
        "previous": number - 1 if exists[number - 1] else None,
        "next": number + 1 if exists[number + 1] else None,
    }


def story(run: OpenRun, number: int) -> Answer:
    """Returns the history of a group as lines of text. Scans all streams. Raises NoSuchGroupError."""
    history = read_history(run.streams, number)
    if history.started is None:
        raise NoSuchGroupError(f"no group {number} has started in this run")
    return {"lines": list(story_lines(history))}


def _prompt(run: OpenRun, offsets: Sequence[int]) -> list[Part]:
    """Returns the parts of the prompt of the first of these rollouts that can be read."""
    for offset in offsets:
        with contextlib.suppress(StreamError):
            rollout = run.reader("rollouts").at(offset)
            assert isinstance(rollout, Rollout)
            if rollout.completions:
                return prompt_of(run, rollout, 0)["prompt"]
    return []


def _texts(run: OpenRun, offset: int) -> Answer:
    """Returns the sampled text of a rollout, cut to TEXT characters, and its judgement."""
    try:
        rollout = run.reader("rollouts").at(offset)
    except StreamError as error:
        unread = {"text": None, "expected": None, "why": None}
        return unread | {"is_cut": False, "why_no_text": str(error)}
    assert isinstance(rollout, Rollout)
    completions = rollout.completions
    text = "\n".join(run.decode(completion.token_ids) for completion in completions)
    return {"text": text[:TEXT], "is_cut": len(text) > TEXT} | judged(rollout)


def accounting(run: OpenRun) -> Answer:
    """Returns the outcomes of all groups and rollouts, also by the version at which groups started."""
    with run.lock:
        accounts = run.following.state.accounts
        summary = accounts.summary()
        newest = run.following.metrics.newest
        last = max((started.version for started in accounts.started.values()), default=0)
        wide = last // BINS + 1
        groups, by_bin = _count(accounts, wide)
    dropped = {outcome: n for outcome, n in groups.items() if outcome not in ("trained", "in flight")}
    rollouts = {
        name.removeprefix("rollouts_"): summary[name] for name in summary if name != "accounting_errors"
    }
    parts = rollouts["trained"] + rollouts["in_flight"] + rollouts["lost"] + sum(rollouts["dropped"].values())
    return {
        "rollouts": rollouts,
        "groups": {
            "started": sum(groups.values()),
            "trained": groups["trained"],
            "in_flight": groups["in flight"],
            "dropped": dropped,
        },
        "zero_advantage": {
            "solved": newest.get("preprocessor/zero_advantage_solved"),
            "hopeless": newest.get("preprocessor/zero_advantage_hopeless"),
        },
        "reasons": {reason: meaning_of(reason)._asdict() for reason in dropped},
        "errors": summary["accounting_errors"],
        "holds": parts == rollouts["started"] and not summary["accounting_errors"],
        "versions_per_bin": wide,
        "by_version": [
            {
                "version": number * wide,
                "trained": counts.pop("trained", 0),
                "in_flight": counts.pop("in flight", 0),
                "dropped": dict(counts),
            }
            for number, counts in sorted(by_bin.items())
        ],
    }


def _count(accounts: GroupAccounts, wide: int) -> tuple[Counter[str], dict[int, Counter[str]]]:
    """Counts the groups by outcome, in total and for each bin of `wide` versions."""
    all_groups: Counter[str] = Counter()
    by_bin: dict[int, Counter[str]] = {}
    for number, started in accounts.started.items():
        settlement = accounts.settlement_of(number)
        outcome = "in flight" if settlement is None else settlement.reason or "trained"
        all_groups[outcome] += 1
        by_bin.setdefault(started.version // wide, Counter())[outcome] += 1
    return all_groups, by_bin
