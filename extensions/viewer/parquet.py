"""Exports the recorded rollouts of a run, which may still be running, as a data set of parquet files.

    python -m extensions.viewer.parquet runs/latest --out /tmp/rollouts

    DIR/README.md               the dataset card, which names the splits
    DIR/train/00000.parquet     training rollouts, with their outcomes
    DIR/held_out/00000.parquet  rollouts of held-out problems

DIR appears when it is complete. If the command is killed, it leaves `.DIR.<process>.partial` beside DIR.
Requires pyarrow: the extra `math`.
"""

import sys
from pathlib import Path

from contracts.support.command_line import command_parser
from contracts.support.complete_directory import complete_directory
from extensions.viewer.dataset_card import Split, write_dataset_card
from extensions.viewer.records.show import load_tokenizer
from pipelinerl.errors import PlanError
from pipelinerl.report.run_totals import accounts_of
from pipelinerl.streams import StreamError
from pipelinerl.streams.events import recorded
from pipelinerl.streams.of_run import recorded_streams
from pipelinerl.streams.run_directory import InvalidInputError, check_run

try:
    from extensions.viewer.rollout_table import SCHEMA, row_of, size_of
    from extensions.viewer.shards import ROW_GROUP_BYTES, SHARD_BYTES, ShardWriter
except ModuleNotFoundError as error:
    sys.exit(f"extensions.viewer.parquet: {error}; it needs: pip install -e '.[math]'")

STREAMS = {"train": "rollouts", "held_out": "eval_rollouts"}  # split -> stream


def export_rollouts(
    run_dir: Path, out: Path, row_group_bytes: int = ROW_GROUP_BYTES, shard_bytes: int = SHARD_BYTES
) -> list[Split]:
    """Writes the recorded rollouts of a run to `out`, and returns the splits that have rows.

    Raises InvalidInputError if there is no run, it has no rollouts, or `out` is not empty.
    """
    check_run(run_dir)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise InvalidInputError(f"{out} exists and is never overwritten; choose a new directory")
    tokenizer = load_tokenizer(run_dir)
    splits = []
    with recorded_streams(run_dir) as streams, complete_directory(out) as directory:
        accounts = accounts_of(streams)
        for name, stream in STREAMS.items():
            shards = ShardWriter(directory / name, SCHEMA, row_group_bytes, shard_bytes)
            for rollout in recorded(streams, stream):
                # Evaluations number their groups separately, so `accounts` has no outcomes for these.
                row = row_of(rollout, tokenizer, accounts if name == "train" else None)
                shards.add(row, size_of(rollout))
            shards.close()
            cut = streams.reader(stream).first_offset() > 0
            splits.append(Split(name, shards.written, cut))
        splits = [split for split in splits if split.rows]
        if not splits:
            raise InvalidInputError(f"{run_dir} has recorded no rollouts yet")
        write_dataset_card(directory / "README.md", run_dir.resolve().name, splits, tokenizer is not None)
    return splits


def main() -> int:
    """Runs the command and returns its exit status."""
    parser = command_parser("extensions.viewer.parquet", __doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="a new or an empty directory")
    arguments = parser.parse_args()
    try:
        splits = export_rollouts(arguments.run_dir, arguments.out)
    except (InvalidInputError, PlanError, StreamError, OSError) as error:
        print(f"extensions.viewer.parquet: {error}", file=sys.stderr)
        return 1
    counts = ", ".join(f"{split.name} {split.rows}" for split in splits)
    print(f"rollouts in {arguments.out}: {counts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
