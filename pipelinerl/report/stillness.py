"""Detects a run without progress from its metrics, and names the process that is waited for. Pure.

Progress is a step, a publication, a finished rollout or attempt, or a dropped group.
"""

STILL_S = 60.0
MOVES = {"trainer": ("step", "weight_version"), "actor": ("rollouts_finished", "attempts_finished")}


class Stillness:
    """Reports a lack of progress once, until there is progress again. now: seconds of a monotonic clock."""

    def __init__(self, now: float):
        self._moved_at = now
        self._has_said = False
        self._latest: dict[tuple[str, str], float] = {}

    def observe(self, process: str, line: dict, now: float) -> None:
        numbers = {(process, name): value for name, value in line.items() if value is not None}
        moves = MOVES.get(process, ())
        if process == "preprocessor":
            moves = tuple(name for name in line if name == "step" or name.startswith("dropped_"))
        if any(
            numbers.get((process, name), before) != before for name, before in self._before(process, moves)
        ):
            self._moved_at = now
            self._has_said = False
        self._latest |= numbers

    def _before(self, process: str, names: tuple[str, ...]) -> list[tuple[str, float | None]]:
        return [(name, self._latest.get((process, name))) for name in names]

    def sentence(self, now: float, servers_alive: int | None) -> str | None:
        if self._has_said or now - self._moved_at < STILL_S:
            return None
        self._has_said = True
        return f"nothing has moved for {STILL_S:.0f} s: waiting for {self._awaited(servers_alive)}"

    def _awaited(self, servers_alive: int | None) -> str:
        """Returns the part of the run that could continue, or the last of several."""
        published = self._latest.get(("trainer", "weight_version"))
        made = self._latest.get(("trainer", "step"), 0)
        formed = self._latest.get(("preprocessor", "step"), 0)
        requests = self._latest.get(("actor", "in_flight"), 0)
        rollouts = self._latest.get(("actor", "rollouts_under_way"), 0)
        held = self._latest.get(("actor", "servers_held"), 0)
        if not servers_alive:
            return "an inference server: none is alive"
        if published is None:
            return (
                f"the first weights to be published: the trainer or the servers ({servers_alive} alive) load"
            )
        if made > published:
            return f"the trainer to publish weight version {made:.0f} to the servers ({servers_alive} alive)"
        if formed > made:
            return f"the trainer's step {made + 1:.0f}: its rows are complete"
        if held and held >= servers_alive:
            return f"a server with usable weights ({servers_alive} alive): logs/actor.log says why none has"
        if requests:
            return f"the servers ({servers_alive} alive): {requests:.0f} requests are in flight"
        if rollouts:
            return (
                f"what judges or answers rollouts: {rollouts:.0f} are under way, and no request is in flight"
            )
        return f"the preprocessor to form step {made + 1:.0f}: no rollout is under way"
