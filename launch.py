"""Launch a run: compose the configuration, check it, plan the jobs, run and supervise them.

    python launch.py                                  the demo, on a CPU
    python launch.py batch_size=256 max_lag=1         any key; --help lists them
    python launch.py inference=scripted plan=true     print the jobs and start nothing
    python launch.py run_dir=runs/latest resume=true  resume a run that stopped, from its last checkpoint
    python launch.py --verbose                        print all figures at the end

A run over several machines is placed on a Ray cluster (executor=ray): docs/cluster.md.

Writes to `run_dir`: the resolved config, one log per process, streams, metrics, checkpoints and
`summary.json`. Exit status 0: the run succeeded. 1: the run failed, or a part of yours failed before the
start. 2: the run was refused before anything started. 130: the run was interrupted.
"""

from pipelinerl.launcher import terminal

if __name__ == "__main__":
    terminal.exit_on_signal()  # the imports take seconds
    terminal.outlast_readers()

import os
import sys

try:
    from pydantic import ValidationError

    from contracts.support.messages import one_line
    from contracts.support.token import TokenError
    from pipelinerl.errors import PartError, PlanError
    from pipelinerl.errors.part_faults import raised_by_users
    from pipelinerl.launcher.composing.compose import compose_config
    from pipelinerl.streams import StreamError
except ModuleNotFoundError as error:
    sys.exit(
        f"launch.py: {error}; start it by .venv/bin/python, which `make demo` makes, "
        "or: pip install -e '.[demo]'"
    )

HELP = ("-h", "--help")
VERBOSE = "--verbose"


def main(arguments: list[str]) -> int:
    """Runs the command, and returns its exit status."""
    sys.path.append(os.getcwd())  # where the user's parts are imported from
    try:
        if {*HELP} & {*arguments}:
            from pipelinerl.launcher.composing.choices import describe_options

            print(__doc__, *describe_options(compose_config([])), sep="\n")
            return 0
        config = compose_config([argument for argument in arguments if argument != VERBOSE])
        if config.plan:
            from pipelinerl.launcher.plan import show_plan

            show_plan(config)
            return 0
        from pipelinerl.launcher.run import run

        return run(config, VERBOSE in arguments)
    except PartError as error:
        terminal.print_message(one_line(error))
        return 1
    except (PlanError, ValidationError, StreamError, TokenError) as error:
        terminal.print_message(one_line(error))
        return 2
    except KeyboardInterrupt:
        terminal.print_message("interrupted")
        return terminal.INTERRUPTED
    except Exception as error:
        line = raised_by_users(error)
        if line is None and not isinstance(error, OSError):
            raise
        terminal.print_message(line or one_line(error))
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
