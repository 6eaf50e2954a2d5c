"""One launch: prepares the run, then prints its plan or starts it.

Called by `launch.py`.
"""

from pipelinerl.config import RunConfig
from pipelinerl.launcher import interruptions
from pipelinerl.launcher.prepare import prepare


def run(config: RunConfig) -> int:
    """Runs what the configuration asks for, or prints its plan, and returns the exit status."""
    if config.plan:
        from pipelinerl.launcher.describe_plan import describe_plan

        with prepare(config) as prepared:
            print(*describe_plan(prepared), sep="\n")
        return 0
    interruptions.interrupt()
    with prepare(config) as prepared:
        from pipelinerl.launcher.start_run import start_run

        return start_run(prepared)
