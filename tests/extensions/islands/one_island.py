"""One island of a tiny trainer in a process of its own.

    python -m tests.extensions.islands.one_island DIRECTORY OPTIONS

It makes updates until its standard input ends. After every round it saves a checkpoint, and prints its
measures and the hash of its anchor as a line of JSON. OPTIONS are those of `DiLoCoTrainer`, as JSON.
"""

import hashlib
import json
import os
import select
import sys
from pathlib import Path

from contracts.trainer import WorkerSpec
from extensions.islands.diloco import DiLoCoTrainer
from tests.extensions.islands.workers import OPTIMIZER, TinyWorker

STEP_S = 0.02  # as if there was more to compute


def main(directory: Path, options: dict) -> None:
    seed = int(options["island"].rsplit("-", 1)[1])
    trainer = DiLoCoTrainer(inner=TinyWorker(seed=seed + 1), directory=str(directory / "rounds"), **options)
    trainer.init_worker(WorkerSpec(model_path="", optimizer=OPTIMIZER))
    checkpoint = directory / options["island"]
    if checkpoint.exists():
        trainer.load(checkpoint)
    while not select.select([sys.stdin], [], [], STEP_S)[0]:
        measures = trainer.step().measures
        if "outer_round" not in measures:
            continue
        save(trainer, checkpoint)
        outer = trainer._island.outer
        told = {name.removeprefix("outer_"): value for name, value in measures.items()}
        print(json.dumps(told | {"anchor": hashlib.sha256(outer.anchor.numpy()).hexdigest()}), flush=True)
    trainer.close()


def save(trainer: DiLoCoTrainer, checkpoint: Path) -> None:
    """Replaces the checkpoint by the present state."""
    unfinished = checkpoint.with_name(f"{checkpoint.name}.new")
    trainer.save(unfinished).wait()
    old = checkpoint.with_name(f"{checkpoint.name}.{os.urandom(4).hex()}")
    if checkpoint.exists():
        checkpoint.rename(old)
    unfinished.rename(checkpoint)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
