"""Exports a checkpoint of a run as a Hugging Face model.

    python -m pipelinerl.export runs/latest --out /tmp/model [--version 40]

Runs in one process on the CPU, and writes a model card, README.md. A run itself exports its last weights, to
`checkpoints/final`.
"""

import sys
from pathlib import Path

from contracts.records import Evaluated
from contracts.support.command_line import command_parser
from contracts.support.messages import one_line
from contracts.support.ports import ReservedPort
from contracts.trainer import WorkerSpec
from contracts.whole_model import IncompleteModelError
from pipelinerl.components import instantiate
from pipelinerl.config import load_config
from pipelinerl.errors import PlanError
from pipelinerl.report.model_card import ModelCardError, write_model_card
from pipelinerl.streams import StreamError
from pipelinerl.streams.events import valid_results
from pipelinerl.streams.of_run import recorded_streams
from pipelinerl.streams.run_directory import InvalidInputError, check_run
from pipelinerl.training.checkpoints import Checkpoints


def export(run_dir: Path, version: int | None, out: Path) -> None:
    """Writes the checkpoint of `version`, or the newest, as a Hugging Face model to the directory `out`.

    Raises PlanError if `out` exists or there is no such checkpoint.
    """
    if out.exists():
        raise PlanError(f"{out} exists and is never overwritten; choose a new directory")
    config = load_config(run_dir)
    checkpoints = Checkpoints(run_dir)
    versions = [position.version for position in checkpoints.complete_checkpoints()]
    if not versions or version not in (None, *versions):
        there = ", ".join(map(str, versions)) or "none"
        raise PlanError(f"{run_dir} has no checkpoint of that version; there are: {there}")
    worker = instantiate(config.trainer)
    with ReservedPort() as port:
        path = str(config.model.path)
        optimizer = config.optimizer
        worker.init_worker(WorkerSpec(model_path=path, optimizer=optimizer, master_port=port.number))
    version = versions[-1] if version is None else version
    worker.load(checkpoints.worker(version))
    worker.export(out)
    worker.close()
    try:
        write_model_card(out, config, version, _results(run_dir))
    except ModelCardError as error:
        print(f"export: {error}", file=sys.stderr)


def _results(run_dir: Path) -> list[Evaluated]:
    """Returns the evaluations of the run, or none if its streams cannot be read."""
    try:
        with recorded_streams(run_dir) as streams:
            return valid_results(streams)
    except (OSError, PlanError, StreamError) as error:
        print(f"export: the card has no held-out success: {one_line(error)}", file=sys.stderr)
        return []


def main() -> None:
    parser = command_parser("pipelinerl.export", __doc__)
    parser.add_argument("run_dir", type=Path, help="directory of a run with checkpoints")
    parser.add_argument("--out", type=Path, required=True, help="new directory for the model")
    parser.add_argument("--version", type=int, help="weight version; default: the newest checkpoint")
    options = parser.parse_args()
    try:
        check_run(options.run_dir)
        export(options.run_dir, options.version, options.out)
        print(options.out)
    except (OSError, PlanError, IncompleteModelError, InvalidInputError) as error:
        sys.exit(f"export: {error}")


if __name__ == "__main__":
    main()
