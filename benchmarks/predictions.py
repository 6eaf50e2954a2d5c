"""Compares measured runs with the simulator's predictions."""

from pathlib import Path
from statistics import fmean

from extensions.simulator.lengths import as_measured
from extensions.simulator.recorded import recorded_inputs
from extensions.simulator.run import SimulatedRun
from pipelinerl.config import load_config

SUCCESS = 0.5  # rate of the emulated domain's attempts
DRAWS = 4  # simulations of a run, each with different lengths


def predicted_tokens_per_s(run_dir: Path, like: Path) -> float:
    """Returns the trained tokens per second in simulations of a run, with the times and lengths of `like`."""
    config = load_config(run_dir)
    recorded = recorded_inputs(like)
    lengths = as_measured(recorded.lengths, config.sampling.max_tokens)
    runs = [
        SimulatedRun(
            config.model_copy(update={"seed": draw}), recorded.rates, lengths, SUCCESS, recorded.prompt_tokens
        )
        for draw in range(DRAWS)
    ]
    return fmean(run.run().trained_tokens_per_s for run in runs)
