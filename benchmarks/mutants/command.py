"""Draws mutants of the adapters and tells which the kit kills, which the unit tests, and which survive.

    python -m benchmarks.mutants --part server --seed 0 --sample 75 --out mutants.jsonl

A mutant that is in the file already is not run again. The lines that each guarantee executes are measured
first, and kept beside it: give another commit another folder.
"""

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
from benchmarks.mutants.lines import executed_lines
from benchmarks.mutants.trial import ROOT, tried
from contracts.conformance.tiny_model import make_tiny_model
from contracts.support.command_line import command_parser

OTHERS = {"__init__", "deepspeed", "zero_state"}  # not mutated: no kit runs the DeepSpeed backend here
PATTERNS = {
    "server": "inference_adapters/*.py",
    "transformers": "inference_adapters/transformers/*.py",
    "trainer": "trainer_adapters/*.py",
}


def files_of(part: str) -> list[str]:
    """Returns the files that are mutated. No kit tries `trainer_adapters/scripted.py`."""
    files = [file for file in sorted(ROOT.glob(PATTERNS[part])) if file.stem not in OTHERS]
    names = [str(file.relative_to(ROOT)) for file in files]
    return [name for name in names if name != "trainer_adapters/scripted.py"]


def records(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def key(record: dict[str, Any]) -> tuple[Any, ...]:
    return record["file"], record["before"], record["after"], record["line"]


def main() -> None:
    parser = command_parser("benchmarks.mutants", __doc__)
    parser.add_argument("--part", choices=PATTERNS, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sample", type=int, default=100, help="how many mutants")
    parser.add_argument("--processes", type=int, default=2, help="how many at a time")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, one for each mutant")
    asked = parser.parse_args()
    known = {key(record) for record in records(asked.out)}
    sample = islice(drawn(ROOT, files_of(asked.part), asked.seed), asked.sample)
    todo = [mutant for mutant in sample if key(asdict(mutant)) not in known]
    asked.out.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        models = {"transformers": make_tiny_model(Path(folder) / "tiny"), "scripted": f"{folder}/scripted"}
        subprocess.run([sys.executable, "-m", "tests.conformance.models", models["scripted"]], check=True)
        lines = {} if asked.part == "trainer" else executed_lines(asked.out.parent, models)
        with ProcessPoolExecutor(asked.processes, get_context("spawn")) as pool:
            for future in as_completed([pool.submit(tried, mutant, models, lines) for mutant in todo]):
                record = json.dumps(future.result())
                with asked.out.open("a") as out:
                    print(record, file=out)
    print(dict(Counter(record["killed by"] or "nothing" for record in records(asked.out))))
