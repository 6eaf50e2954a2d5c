"""A taskset that raises while it loads; what it prints is no task, and the last words are no reason."""

import atexit

import verifiers.v1 as vf


class Raising(vf.Taskset[vf.Task[vf.TaskData]]):
    def load(self):
        print("loading")
        atexit.register(print, "goodbye")
        yield None["row"]


class Silent(vf.Harness[vf.HarnessConfig]):
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, *others, **more):
        return vf.ProgramResult(0, "", "")


__all__ = ["Raising", "Silent"]
