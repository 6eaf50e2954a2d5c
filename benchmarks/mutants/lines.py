"""Finds the lines of the adapters that each guarantee executes on a correct server.

A guarantee that does not execute a line cannot detect its mutants, so it is not tried on them.
"""

import ast
import json
import os
import signal
import time
from pathlib import Path

import coverage

from benchmarks.mutants.server import ROOT, TOKEN, options_of, serving
from contracts.conformance.inference.kit import check_inference
from contracts.conformance.inference.reference import Reference

STORED = ["G12", "G15", "G13", "G16", "G14"]  # of channels
CHEAPEST_FIRST = ["G10", "G9", "G11", "G8", "G6", "G3", "G7", "G5", "G1", "G4", "G2", *STORED]
TRAINER_CHEAPEST_FIRST = ["T4", "T6", "T7", "T9", "T3", "T5", "T1", "T2"]
LIKELY = {  # guarantees that detect most mutants of a file, and so are tried first
    "app body_limits error_answers http_protocol neutral_values text_checks": ["G6"],
    "manifest_check membership update_ledger weight_updates control_routes": ["G6", "G7"],
    "request_checks": ["G9", "G4", "G6"],
    "scripted sampling": ["G9", "G4"],
    "scoring": ["G3"],
    "embedded finite_weights": ["G9", "G7"],
    "learning_rate": ["T3"],
    "checkpoint checkpoint_io": ["T5"],
    "attention token_scores": ["T4", "T1"],
}
SHORT = {"token": TOKEN, "timeout_s": 1.0, "grace_s": 5.0, "answer_s": 60.0, "updates": 8}
START = "start"
Lines = dict[str, dict[str, list[int]]]  # lines of each file, by guarantee


def executed_lines(folder: Path, models: dict[str, str]) -> dict[str, Lines]:
    """Returns the lines by adapter. They are measured once per folder of results, and stored there."""
    found = {}
    for adapter in ("scripted", "transformers"):
        file = folder / f"mutants-lines-{adapter}.json"
        if not file.exists():
            file.write_text(json.dumps(_measured(folder, adapter, models[adapter])))
        found[adapter] = json.loads(file.read_text())
    return found


def _measured(folder: Path, adapter: str, model: str) -> Lines:
    data = folder.absolute() / f"mutants-coverage-{adapter}"
    label = folder.absolute() / f"mutants-label-{adapter}"
    reference = Reference(model, trust_remote_code=True)
    with serving(ROOT, adapter, options_of(adapter, model), Recording(data, label)) as (url, pid):
        for code in [*CHEAPEST_FIRST, "end"]:
            label.write_text(code)
            os.kill(pid, signal.SIGUSR2)
            while label.exists():
                time.sleep(0.05)
            if code != "end":
                (verdict,) = check_inference([url], reference, only=[code], **SHORT)
                print(f"{adapter}: lines of {code}: {verdict.state} in {verdict.seconds:.0f} s", flush=True)
    lines = _by_guarantee(data)
    data.unlink()
    return lines


class Recording:
    """Makes a server record its executed lines. SIGUSR2 switches to the name in the file `label`."""

    def __init__(self, data: Path, label: Path):
        self._data, self._label = data, label

    def __call__(self) -> None:
        self._coverage = coverage.Coverage(
            self._data, source=[str(ROOT / "inference_adapters")], config_file=False
        )
        self._coverage.start()
        self._coverage.switch_context(START)
        signal.signal(signal.SIGUSR2, self._switch)

    def _switch(self, *_: object) -> None:
        self._coverage.switch_context(self._label.read_text())
        self._coverage.save()
        self._label.unlink()


def _by_guarantee(file: Path) -> Lines:
    data = coverage.CoverageData(str(file))
    data.read()
    lines: Lines = {}
    for measured in data.measured_files():
        name = str(Path(measured).relative_to(ROOT))
        for line, codes in data.contexts_by_lineno(measured).items():
            for code in codes:
                lines.setdefault(code, {}).setdefault(name, []).append(line)
    return lines


def guarantees(file: str, line: int, lines: Lines) -> list[str]:
    """Returns the guarantees that execute the statement at a line; all if it runs at the server's start."""
    statement = set(_statement(ROOT / file, line))
    if statement & set(lines[START].get(file, [])):
        return in_order(file, CHEAPEST_FIRST)
    return [
        code for code in in_order(file, CHEAPEST_FIRST) if statement & set(lines.get(code, {}).get(file, []))
    ]


def in_order(file: str, cheapest_first: list[str]) -> list[str]:
    first = [code for stems, codes in LIKELY.items() if Path(file).stem in stems.split() for code in codes]
    return [*first, *(code for code in cheapest_first if code not in first)]


def _statement(file: Path, line: int) -> range:
    """Returns the lines of the innermost statement, or of its header if it contains other statements."""
    best = range(line, line + 1)
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.stmt):
            inner = getattr(node, "body", None)
            end = inner[0].lineno - 1 if inner else node.end_lineno
            if node.lineno <= line <= max(end, node.lineno):
                best = range(node.lineno, max(end, node.lineno) + 1)
    return best
