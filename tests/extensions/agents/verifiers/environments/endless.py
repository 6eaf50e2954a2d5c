"""A taskset that does not end."""

from itertools import count

import verifiers.v1 as vf


class Endless(vf.Taskset[vf.Task[vf.TaskData]]):
    INFINITE = True

    def load(self):
        for number in count():
            yield vf.Task(vf.TaskData(prompt=str(number)), self.config.task)


__all__ = ["Endless"]
