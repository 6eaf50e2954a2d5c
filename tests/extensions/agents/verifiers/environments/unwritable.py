"""Tasks whose data is another one after it was written as JSON."""

from typing import Any

import verifiers.v1 as vf


class Data(vf.TaskData):
    held: Any = None


class HeldTask(vf.Task[Data]):
    pass


class Unwritable(vf.Taskset[HeldTask]):
    def load(self):
        yield HeldTask(Data(prompt="", held=(1, 2)), self.config.task)


class Silent(vf.Harness[vf.HarnessConfig]):
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, *others, **more):
        return vf.ProgramResult(0, "", "")


__all__ = ["Silent", "Unwritable"]
