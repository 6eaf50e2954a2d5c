"""The servers of a run with their rates, the slowest first."""

from extensions.viewer.answers.overview import Answer
from extensions.viewer.index.run_state import Server
from extensions.viewer.runs.opened import OpenRun

RECENT = 500  # newest rollouts, for the rates


def servers(run: OpenRun) -> Answer:
    """Returns the servers; those that have left come last."""
    with run.lock:
        known = list(run.following.state.servers)
        is_live = run.following.is_live
        described = [_described(server, is_live) for server in known]
    done = run.queries.servers()
    rates = _rates(run)
    answers = []
    for server, answer in zip(known, described, strict=True):
        counts = done.get(server.joined.url)
        for name in ("requests", "tokens", "aborted"):
            answer[name] = counts[name] if counts else 0
        answer["last_request_at"] = counts["last_at"] if counts else None
        answer["tokens_per_s"] = rates.get(server.joined.url) if server.why_left is None else None
        answers.append(answer)
    answers.sort(key=lambda answer: (answer["state"] != "live", answer["tokens_per_s"] or 0.0))
    return {"servers": answers, "requests_recent": RECENT}


def _described(server: Server, is_live: bool) -> Answer:
    joined = server.joined
    return {
        "name": joined.name,
        "url": joined.url,
        "engine": joined.engine,
        "node": joined.node,
        "state": _state(server, is_live),
        "version": server.version,
        "joined_at": joined.at or None,
        "paused_s_max": server.longest_pause_s,
        "paused_s_last": server.paused_s,
        "transfer_s_last": server.transfer_s,
    }


def _state(server: Server, is_live: bool) -> str:
    if server.why_left is not None:
        return f"left: {server.why_left}"
    if not is_live:
        return "left: the run ended"
    return "joining" if server.version is None else "live"


def _rates(run: OpenRun) -> dict[str, float]:
    """Returns the tokens per second of each server, over the newest rollouts."""
    newest = {*run.queries.newest_offsets(RECENT)}
    completions = [c for _, rollout in run.slim_rollouts(newest) for c in rollout.completions]
    if not completions:
        return {}
    seconds = max(c.ended for c in completions) - min(c.began for c in completions)
    tokens: dict[str, int] = {}
    for completion in completions:
        tokens[completion.server] = tokens.get(completion.server, 0) + completion.tokens
    return {url: count / seconds for url, count in tokens.items()} if seconds > 0 else {}
