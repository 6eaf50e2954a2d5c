"""Predicts a run's throughput, idle shares and lag without running it.

    python -m extensions.simulator +exp=math_7b --lengths lognormal:900,1.0
    python -m extensions.simulator +exp=math_7b --compare --like runs/earlier

Admission, lag and batching are the real ones; servers and trainer only take time. Their times come from a
recorded run (--like), from the command line, or from the model's shape and a GPU's data sheet.
"""

import argparse
import sys
from dataclasses import fields
from pathlib import Path

from pydantic import ValidationError

from contracts.support.command_line import command_parser
from contracts.support.messages import one_line
from extensions.simulator.inputs import check_samples, inputs_of
from extensions.simulator.memory import warned_of_memory
from extensions.simulator.rates import DEVICES, Rates
from extensions.simulator.run import SimulatedRun, StalledError
from extensions.simulator.table import HEAD, row_of
from pipelinerl.config import RunConfig
from pipelinerl.errors import PlanError
from pipelinerl.launcher.checking.model import check_shape
from pipelinerl.launcher.checking.model_source import find_model
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.launcher.executors.base import check_executor
from pipelinerl.streams.run_directory import InvalidInputError
from pipelinerl.turns import turns_of
from pipelinerl.weight_transport import transport_of

SCHEDULES = ("pipeline", "async", "conventional")
STEPS = 30


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    given = _options(arguments)
    try:
        if not 0 <= given.success <= 1:
            raise ValueError(f"--success {given.success:g}: from 0 to 1")
        config = compose_config(["plan=true", f"max_steps={given.steps}", *given.settings])
        check_samples(config)
        check_executor(config)
        transport_of(config).check()
        if turns := turns_of(config):
            turns.check()
        shape = find_model(config).shape
        if shape:
            check_shape(config, shape)
        inputs = inputs_of(config, shape, given)
        print(inputs.described(), *warned_of_memory(config, shape), "", HEAD, sep="\n")
        for each in _compared(config) if given.compare else [config]:
            run = SimulatedRun(each, inputs.rates, inputs.lengths, given.success, inputs.prompt_tokens)
            print(row_of(each, run.run()), flush=True)
    except (PlanError, InvalidInputError, ValidationError, ValueError, OSError, StalledError) as error:
        print(f"simulate: {one_line(error)}", file=sys.stderr)
        return 2
    return 0


def _compared(config: RunConfig) -> list[RunConfig]:
    """Returns a configuration of each schedule in which no turns are taken, and the given one if they are."""
    given = [config] if config.takes_turns else []
    return given + [config.model_copy(update={"schedule": schedule}) for schedule in SCHEDULES]


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("extensions.simulator", __doc__)
    parser.add_argument("--compare", action="store_true", help="simulate the other schedules too")
    parser.add_argument("--steps", type=int, default=STEPS, help="optimizer steps")
    parser.add_argument("--like", type=Path, help="a recorded run, for lengths and times")
    parser.add_argument(
        "--lengths",
        help="constant:N or lognormal:MEDIAN,SIGMA, in tokens; by default an eighth of the longest, 1.0",
    )
    parser.add_argument("--prompt-tokens", type=int)
    parser.add_argument("--success", type=float, default=0.5, help="share of right answers")
    parser.add_argument("--device", choices=DEVICES, default="h100")
    for rate in fields(Rates):
        parser.add_argument(
            f"--{rate.name.replace('_', '-')}", type=float, help="see extensions/simulator/rates.py"
        )
    parser.add_argument("settings", nargs="*", help="overrides, as for launch.py")
    return parser.parse_intermixed_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
