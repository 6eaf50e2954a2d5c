"""Prints the plan of a run (`plan=true`): processes, memory and expected lag. Called by `launch.py`."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from contracts.support.sizes import describe_bytes, describe_count
from pipelinerl.components import build_observers
from pipelinerl.config import RunConfig
from pipelinerl.errors import PlanError
from pipelinerl.launcher.checking.components import missing
from pipelinerl.launcher.checking.gpu_memory import (
    TRANSFORMERS,
    longest_sequence,
    rank_use,
    sequences_held,
    server_use,
)
from pipelinerl.launcher.checking.host_needs import describe_host
from pipelinerl.launcher.checking.model_source import Model
from pipelinerl.launcher.checking.prerequisites import caution_of_shared_memory, driver_cuda, lacking
from pipelinerl.launcher.checking.problems import describe_problems
from pipelinerl.launcher.checking.room import shortages
from pipelinerl.launcher.checking.server_limits import warned_of_places
from pipelinerl.launcher.checking.side_by_side import peaks_in_turns, server_bytes
from pipelinerl.launcher.checking.template import describe_template
from pipelinerl.launcher.executors.base import Executor, ResourceRequest, executor_class
from pipelinerl.launcher.executors.bundles import Resources, bundles_of, every_bundle_of, groups_of
from pipelinerl.launcher.forked import in_forked
from pipelinerl.launcher.jobs import Job
from pipelinerl.launcher.plan_block import parts_of, what_it_takes
from pipelinerl.launcher.prepare import Prepared, prepare
from pipelinerl.launcher.resource_requests import WORKERS, job_specs
from pipelinerl.rollouts.admission import STEPS_AHEAD
from pipelinerl.streams.of_run import StreamsServer
from pipelinerl.turns import turns_of


def show_plan(config: RunConfig) -> None:
    def plan() -> list[str]:
        with prepare(config) as prepared:
            return [*describe_plan(prepared)]

    print(*in_forked(plan), sep="\n")


def describe_plan(prepared: Prepared) -> Iterator[str]:
    """Yields the lines. Queries the Ray cluster at RAY_ADDRESS, if that is set."""
    config = prepared.placed.config
    run_dir = prepared.placed.run_dir
    model = prepared.found.model
    streams = prepared.streams
    yield f"run directory: {run_dir}"
    yield f"model: {_model(model)}"
    if model.state == "here":
        yield from describe_template(config, model.path)
    yield from describe_problems(config, model)
    yield f"streams: {streams.place or streams.target}"
    yield from _reservations(config, prepared.placed.executor)
    yield ""
    yield from _processes(prepared.jobs, streams.server)
    for observer in build_observers(config):
        yield f"{observer.name:14} {' '.join((*observer.command(run_dir), *observer.with_run))}"
    yield ""
    address = config.weights.master_address or "the address of trainer rank 0"
    yield (
        "ports: of servers in their commands (free ones, 0 where yet to be chosen, or from "
        f"inference.base_port on); of the trainer's ranks a free one on {address}"
    )
    yield from _memory(config, model, run_dir)
    if model.shape and not config.world.gpus:  # with GPUs, the plan may be for another machine
        yield from (f"warning: {shortage}" for shortage in shortages(config, model.shape, run_dir))
    yield from _expectations(config)
    yield from warned_of_places(config)
    yield from prepared.placed.planner.transport.plan_notes()
    if turns := turns_of(config):
        yield from turns.plan_notes()
    lacking_packages = [*missing(config), streams.server and streams.server.missing]
    yield from (f"not here: {reason}" for reason in lacking_packages if reason)
    yield from _machine(config)


def _reservations(config: RunConfig, executor: Executor) -> Iterator[str]:
    if not executor.spans_nodes:
        return
    yield ""
    requests = [request for _, request in job_specs(config)]
    capacity = executor.capacity(requests)
    yield f"executor: {capacity.summary}"
    yield from (f"  {node}" for node in capacity.nodes)
    yield from capacity.fits
    for group, members in groups_of(requests).items():
        bundles = bundles_of(members).values()
        where = f"in {len(bundles)} bundles" if group == WORKERS else "on one node"
        yield f"  {group:20} {sum(bundles, Resources())} {where}"
    if config.world.gpus:
        nodes = nodes_needed(config, requests)
        yield f"at least {nodes} nodes of {config.world.gpus} GPUs (world.gpus)"


def nodes_needed(config: RunConfig, requests: Iterable[ResourceRequest]) -> int:
    """Returns the number of nodes of `world.gpus` GPUs for all bundles. Raises PlanError for a larger one."""
    free: list[float] = []
    for name, needs in sorted(every_bundle_of(requests), key=lambda bundle: -bundle[1].gpus):
        if needs.gpus > config.world.gpus:
            raise PlanError(
                f"{name} needs {needs.gpus:g} GPUs of one node, and a node has {config.world.gpus} "
                "(world.gpus)"
            )
        found = next((i for i, left in enumerate(free) if left >= needs.gpus), None)
        if found is None:
            free.append(config.world.gpus)
            found = -1
        free[found] -= needs.gpus
    return len(free)


def _processes(jobs: Sequence[Job], server: StreamsServer | None) -> Iterator[str]:
    width = max(len(job.device) for job in jobs)
    if server:
        yield f"{server.name:14} {'CPU':{width}} {' '.join(server.command)}"
    for job in jobs:
        yield f"{job.name:14} {job.device:{width}} {' '.join(job.command)}"


def _model(model: Model) -> str:
    states = {"here": "", "on the hub": "no directory here, so from the Hugging Face hub"}
    facts = [states.get(model.state, model.state)]
    if model.shape:
        parameters = describe_count(model.shape.parameters)
        facts += [f"{parameters} parameters", f"a context of {model.shape.context:,} tokens"]
        facts += ["" if model.state == "here" else "by model.shape"]
    return ", ".join([model.path, *filter(None, facts)])


def _memory(config: RunConfig, model: Model, run_dir: Path) -> Iterator[str]:
    if not config.world.gpus or model.shape is None:
        yield "parts:"
        yield from (f"  {line}" for line in parts_of(config))
    if not config.world.gpus:
        return
    if model.shape is None:
        yield "time and memory: not known before the model is here (model.shape would tell)"
        return
    yield from what_it_takes(config, model, run_dir)
    uses = [server_use(config, model.shape), rank_use(config, model.shape)]
    yield f"memory of a GPU ({config.world.gpu_memory_gib:g} GiB), estimated:"
    for use in filter(None, uses):
        parts = ", ".join(f"{name} {describe_bytes(size)}" for name, size in use.parts.items())
        yield f"  a {use.who}: {describe_bytes(use.total)} = {parts}"
    if config.shares_gpus and uses[1]:
        both = server_bytes(config, model.shape) + uses[1].total
        peaks = peaks_in_turns(config, model.shape, uses[1])
        if not config.takes_turns:
            yield f"  both, on one GPU: {describe_bytes(both)}"
        when = max(peaks, key=peaks.__getitem__)
        if config.takes_turns or config.inference.module == TRANSFORMERS:
            yield f"  in turns (schedule=colocated): {describe_bytes(peaks[when])} at most, {when}"
    held = sequences_held(config, model.shape)
    longest = longest_sequence(config)
    yield f"  keys and values of a server: of {held} sequences of {longest} tokens, the longest, or of more"
    if uses[1] is None:
        yield "  a trainer rank: its backend makes no estimate"
    yield from describe_host(config, model.shape)


def _machine(config: RunConfig) -> Iterator[str]:
    """Yields what this machine lacks. Without a driver, the plan is for another one."""
    if not config.world.gpus:
        return
    if executor_class(config).spans_nodes or driver_cuda() is None:
        yield "not checked here: the driver, C compiler, Python.h and /dev/shm of the machines with the GPUs"
        return
    yield from (f"not here: {reason}" for reason in lacking(config))
    if caution := caution_of_shared_memory():
        yield f"warning: {caution}"


def _expectations(config: RunConfig) -> Iterator[str]:
    servers = config.world.servers
    each = config.inference.requests_at_first
    batch = config.batch_size
    offered = config.requests_in_flight
    limit = config.lag_limit
    admitted = None if limit is None else (limit + 1) * batch
    in_flight = offered if admitted is None else min(offered, admitted)
    bound = "" if in_flight == offered else f", but max_lag={limit} admits {admitted} rollouts"
    at_first = " at first, for it is null" if config.inference.concurrency is None else ""
    counted = f"{servers} servers x inference.concurrency {each}{at_first}{bound}"
    yield f"expected in flight: {in_flight} sequences ({counted})"
    steps = in_flight / batch
    mean = steps / 2 + 0.5
    if limit is None:
        ahead = steps + STEPS_AHEAD
        most = f"; while generation is faster than training up to about {ahead:.2g} (max_lag=null)"
    else:
        mean = min(mean, limit)
        most = f", and {limit} at most (max_lag)"
    yield (
        f"expected lag: while a sequence is generated the trainer makes about {steps:.2g} steps (in flight / "
        f"batch_size), and up to one more until its batch is complete: a mean of about {mean:.2g}{most}"
    )
