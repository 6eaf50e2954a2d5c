"""What a run on GPUs will take, for its plan: its parts, hours, downloads, memory, and disk."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from contracts.model_shape import ModelShape
from contracts.support.messages import one_line
from contracts.support.sizes import describe_bytes
from pipelinerl.components import instantiate
from pipelinerl.config import Component, RunConfig
from pipelinerl.errors import PlanError
from pipelinerl.launcher.checking.gpu_memory import VALUE_BYTES
from pipelinerl.launcher.checking.host_needs import disk_parts, footprint
from pipelinerl.launcher.checking.model_source import Model
from pipelinerl.launcher.executors.base import executor_class

LONGEST = 80  # characters of an option
HUB_DTYPE = "bfloat16"  # of most published weights
PARTS = ("objective", "advantage", "normalisation", "sampler", "domain", "trainer")
LISTS = ("regularisers", "filters", "rewards")


def what_it_takes(config: RunConfig, model: Model, run_dir: Path) -> Iterator[str]:
    """Yields the lines of the block. model: whose shape is known."""
    yield "what it will take:"
    yield from (f"  {line}" for line in parts_of(config))
    yield from (f"  {line}" for line in _time(config, model.shape))
    yield f"  downloads: {_downloads(config, model)}"
    yield from (f"  {line}" for line in _disk(config, model.shape, run_dir))


def parts_of(config: RunConfig) -> Iterator[str]:
    """Yields a line for each part that decides what is learnt, and from what."""
    for name in PARTS:
        yield f"{name}: {described(getattr(config, name))}"
    for name in LISTS:
        yield f"{name}: {'; '.join(map(described, getattr(config, name))) or 'none'}"


def described(part: Component) -> str:
    """Returns the name of a part's class, with its options that are short."""
    given = {name: value for name, value in part.options.items() if not name.startswith("_")}
    options = [f"{name}={_short(value)}" for name, value in given.items() if value or value == 0]
    return " ".join([part.target.rpartition(".")[2], *(each for each in options if len(each) <= LONGEST)])


def _short(value: object) -> str:
    if isinstance(value, dict):
        return f"{{{','.join(f'{name}={_short(each)}' for name, each in value.items())}}}"
    return f"[{','.join(map(_short, value))}]" if isinstance(value, list) else str(value)


def _time(config: RunConfig, shape: ModelShape) -> Iterator[str]:
    if config.estimate is None:
        yield "time: not estimated (estimate: null)"
        return
    try:
        estimator = instantiate(config.estimate)
    except Exception as error:
        raise PlanError(f"estimate: {one_line(error.__cause__ or error)}") from error
    try:
        yield from estimator.lines(config, shape)
    except ValueError as error:
        yield f"time: not estimated: {one_line(error)}"


def _downloads(config: RunConfig, model: Model) -> str:
    if model.state == "here":
        return "the model is here"
    size = VALUE_BYTES[HUB_DTYPE] * model.shape.parameters
    fetched = ", and the problems" if instantiate(config.domain, seed=config.seed).fetches else ""
    return f"{model.path}, about {describe_bytes(size)} if it is published in {HUB_DTYPE}{fetched}"


def _disk(config: RunConfig, shape: ModelShape, run_dir: Path) -> Iterator[str]:
    taken = footprint(config, shape)
    if taken is None or executor_class(config).spans_nodes:
        return
    needed = sum(disk_parts(config, shape, taken).values())
    place = next(path for path in (run_dir, *run_dir.parents) if path.is_dir())
    free = shutil.disk_usage(place).free
    lacking = "" if free >= needed else f": {describe_bytes(needed - free)} too little"
    yield f"disk: {describe_bytes(needed)} of checkpoints, and {describe_bytes(free)} are free here{lacking}"
