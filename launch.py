"""Launch a run: compose the configuration, check it, plan the jobs, run and supervise them.

    python launch.py                                  the demo, on a CPU
    python launch.py batch_size=256 max_lag=1         any key; --help lists them
    python launch.py inference=scripted plan=true     print the jobs and start nothing
    python launch.py run_dir=runs/latest resume=true  resume a run that stopped, from its last checkpoint

A run over several machines is placed on a Ray cluster (executor=ray): docs/cluster.md.

Writes to `run_dir`: the resolved config, one log per process, streams, metrics, checkpoints and
`summary.json`. Exit status 0 means that the run did what it was asked. 1 means that it failed, or a part of
yours before its start. 2 means that it was refused before anything started, and 130 that it was interrupted.
"""

from pipelinerl.launcher import interruptions

if __name__ == "__main__":
    interruptions.end_at_once()  # the imports take seconds
    interruptions.outlast_readers()

import os
import sys

try:
    from pydantic import ValidationError

    from contracts.support.messages import one_line
    from contracts.support.token import TokenError
    from pipelinerl.errors import PartError, PlanError
    from pipelinerl.errors.part_faults import raised_by_users
    from pipelinerl.launcher.composing.compose import compose_config
    from pipelinerl.launcher.messages import say
    from pipelinerl.streams import StreamError
except ModuleNotFoundError as error:
    sys.exit(
        f"launch.py: {error}; start it by .venv/bin/python, which `make demo` makes, "
        "or: pip install -e '.[demo]'"
    )

HELP = ("-h", "--help")


def main(arguments: list[str]) -> int:
    """Runs the command and returns its exit status."""
    sys.path.append(os.getcwd())  # parts of one's own, from where one works
    try:
        if {*HELP} & {*arguments}:
            from pipelinerl.launcher.composing.help import describe_options

            print(__doc__, *describe_options(), sep="\n")
            return 0
        config = compose_config(arguments)
        if config.plan:
            from pipelinerl.launcher.plan import show_plan

            show_plan(config)
            return 0
        from pipelinerl.launcher.run import run

        return run(config)
    except PartError as error:
        say(one_line(error))
        return 1
    except (PlanError, ValidationError, StreamError, TokenError) as error:
        say(one_line(error))
        return 2
    except KeyboardInterrupt:
        say("interrupted")
        return interruptions.STATUS
    except Exception as error:
        if (line := raised_by_users(error)) is None:
            raise
        say(line)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
