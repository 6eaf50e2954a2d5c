"""Draws mutants of the adapters and tells which the kit kills, which the unit tests, and which survive.

    python -m benchmarks.mutants --part inference --seed 0 --sample 100 --out mutants.jsonl

A mutant that is in the file already is not run again. One takes a minute on idle cores, and three where the
kit does not kill it. What fails by a limit of time is tried twice; `seen` says what was measured.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.mutants.draw import drawn
from benchmarks.mutants.trial import ROOT, tried
from contracts.conformance.tiny_model import make_tiny_model

INFERENCE = """app body_limits choices completions control_routes embedded error_answers finite_weights
    generation_routes manifest_check request_checks score_route scripted streaming text_checks threads
    weight_updates
    transformers/attention transformers/batched_request transformers/batching transformers/engine
    transformers/outbox transformers/runner transformers/sampling transformers/scoring"""
TRAINER = """attention checkpoint checkpoint_io fsdp hugging_face_trainer learning_rate memory
    process_group start_check token_scores"""
FILES = {
    "inference": [f"inference_adapters/{name}.py" for name in INFERENCE.split()],
    "trainer": [f"trainer_adapters/{name}.py" for name in TRAINER.split()],
}


def records(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def key(record: dict[str, Any]) -> tuple[Any, ...]:
    return record["file"], record["before"], record["after"], record["line"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--part", choices=FILES, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sample", type=int, default=100, help="how many mutants")
    parser.add_argument("--processes", type=int, default=2, help="how many at a time")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, one for each mutant")
    asked = parser.parse_args()
    known = {key(record) for record in records(asked.out)}
    sample = islice(drawn(ROOT, FILES[asked.part], asked.seed), asked.sample)
    todo = [mutant for mutant in sample if key(asdict(mutant)) not in known]
    with tempfile.TemporaryDirectory() as folder:
        models = {"transformers": make_tiny_model(Path(folder) / "tiny"), "scripted": f"{folder}/scripted"}
        subprocess.run([sys.executable, "-m", "tests.conformance.models", models["scripted"]], check=True)
        asked.out.parent.mkdir(exist_ok=True)
        with ProcessPoolExecutor(asked.processes, get_context("spawn")) as pool:
            for future in as_completed([pool.submit(tried, mutant, models) for mutant in todo]):
                record = json.dumps(future.result())
                with asked.out.open("a") as out:
                    print(record, file=out)
    print(dict(Counter(record["killed by"] or "nothing" for record in records(asked.out))))


if __name__ == "__main__":
    main()
