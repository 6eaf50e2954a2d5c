"""Exports a checkpoint of a run as a Hugging Face model.

    python -m pipelinerl.export runs/latest --out /tmp/model [--version 40]

One process, on the CPU, whatever the run was trained on. The model card, README.md, says how it was trained.
(A run exports its last weights by itself, to `checkpoints/final`.)
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
from pipelinerl.training.checkpoints import Checkpoints


def export(run_dir: Path, version: int | None, out: Path) -> None:
    """Writes a checkpoint of the run, the one of `version` or the newest, as a Hugging Face model.

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
    """Returns the evaluations of the run. Returns none if its streams cannot be read: export continues."""
    try:
        with recorded_streams(run_dir) as streams:
            return valid_results(streams)
    except (OSError, StreamError) as error:
        print(f"export: the card has no held-out success: {one_line(error)}", file=sys.stderr)
        return []


def main() -> None:
    parser = command_parser("pipelinerl.export", __doc__)
    parser.add_argument("run_dir", type=Path, help="of a run that has checkpoints")
    parser.add_argument("--out", type=Path, required=True, help="a new directory")
    parser.add_argument("--version", type=int, help="whose weights; default: the newest checkpoint's")
    options = parser.parse_args()
    try:
        export(options.run_dir, options.version, options.out)
        print(options.out)
    except (OSError, PlanError, IncompleteModelError) as error:
        sys.exit(f"export: {error}")


if __name__ == "__main__":
    main()
