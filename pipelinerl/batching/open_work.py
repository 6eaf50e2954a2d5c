"""Tracks groups and steps that the trainer has not closed, whose records must stay in the streams. Pure."""

from contracts.records import MicroBatchRow


class OpenWork:
    """The offsets of the records of open groups and steps."""

    def __init__(self) -> None:
        self._groups: dict[int, int] = {}  # group without a complete step -> offset of its first rollout
        self._rows: dict[int, int] = {}  # open step -> offset of its first row
        self._steps: dict[int, list[int]] = {}  # open, complete step -> its groups

    def group_began(self, group_id: int, offset: int) -> None:
        """Records the offset in `rollouts` of a group's first rollout. Later calls have no effect."""
        self._groups.setdefault(group_id, offset)

    def group_dropped(self, group_id: int) -> None:
        del self._groups[group_id]

    def row_formed(self, row: MicroBatchRow) -> None:
        """Moves the groups of a step to it when its last row is formed."""
        if not row.closes_step:
            return
        self._steps[row.step] = row.group_ids
        for group_id in row.group_ids:
            del self._groups[group_id]

    def row_written(self, step: int, offset: int) -> None:
        """Records the offset in `rows` of a step's first row. Later calls have no effect."""
        self._rows.setdefault(step, offset)

    def step_closed(self, version: int) -> None:
        """Removes the steps before `version`, which the trainer has closed."""
        self._steps = {step: ids for step, ids in self._steps.items() if step >= version}
        self._rows = {step: offset for step, offset in self._rows.items() if step >= version}

    def first_rollout(self, default: int) -> int:
        """Returns the first offset in `rollouts` that is needed."""
        return min(self._groups.values(), default=default)

    def first_row(self, step: int, default: int) -> int:
        return self._rows.get(step, default)

    def groups_from(self, step: int) -> list[int]:
        """Returns the groups of the complete steps from `step` on."""
        return [group for of, groups in self._steps.items() if of >= step for group in groups]
