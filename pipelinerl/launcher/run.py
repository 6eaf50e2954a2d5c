"""One launch: prepares the run, then prints its plan or starts it.

Called by `launch.py`.
"""

from functools import partial

from pipelinerl.config import RunConfig
from pipelinerl.launcher import interruptions
from pipelinerl.launcher.forked import in_forked
from pipelinerl.launcher.prepare import prepare


def run(config: RunConfig) -> int:
    """Runs what the configuration asks for, or prints its plan, and returns the exit status."""
    if config.plan:
        print(*in_forked(partial(_plan_of, config)), sep="\n")
        return 0
    interruptions.interrupt()
    with prepare(config) as prepared:
        from pipelinerl.launcher.start_run import start_run

        return start_run(prepared)


def _plan_of(config: RunConfig) -> list[str]:
    """Returns the lines of the plan. What parts start while it is made ends with this process."""
    from pipelinerl.launcher.describe_plan import describe_plan

    with prepare(config) as prepared:
        return [*describe_plan(prepared)]
