"""Runs one process of a recorded run without the others, for debugging.

    python -m extensions.tools.replay actor runs/latest --url http://127.0.0.1:8000 --out /tmp/rollouts
    python -m extensions.tools.replay trainer runs/latest --out /tmp/replayed

`actor` samples a few groups on a running server, with the run's configuration. It writes them as a run that
`python -m extensions.viewer.records show` reads. `trainer` trains on the recorded rows in one process, prints
every step and exports the model. Both use the pipeline's code, without its streaming.
"""

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from contracts.records import MicroBatchRow, Resumed, StepClosed
from contracts.support.command_line import command_parser
from contracts.support.ports import ReservedPort
from contracts.support.token import TOKEN_VARIABLE
from contracts.token_fields import TokenFieldError
from contracts.trainer import WorkerSpec
from pipelinerl.clients.http_session import open_session
from pipelinerl.clients.of_run import build_client
from pipelinerl.clients.server_pool import ServerPool
from pipelinerl.components import build_domain, build_sampler, instantiate
from pipelinerl.config import ResolvedStreams, RunConfig, load_config, save_config
from pipelinerl.domains.base import opened
from pipelinerl.domains.judges import judge_of
from pipelinerl.errors import PlanError
from pipelinerl.launcher.run_directory import check_run_dir
from pipelinerl.rollouts.reward_terms import with_terms
from pipelinerl.rollouts.runner import RolloutRunner, RolloutSpec
from pipelinerl.streams import Streams
from pipelinerl.streams.events import recorded_events
from pipelinerl.streams.of_run import backend_of, open_streams, recorded_streams
from pipelinerl.streams.run_directory import InvalidInputError, check_run
from pipelinerl.training.learner import Learner
from pipelinerl.training.ranks import Ranks


async def replay_actor(config: RunConfig, url: str, groups: int, out: Path) -> None:
    """Samples `groups` groups of training problems on the server, and writes their rollouts to `out`."""
    domain = build_domain(config)
    sampler = build_sampler(config, domain)
    rollouts = open_streams(config, out).writer("rollouts")
    pool = ServerPool(config.inference.requests_at_first)
    await pool.set_servers([url])
    async with (
        open_session(os.environ.get(TOKEN_VARIABLE)) as session,
        judge_of(domain, config.judging) as judge,
        opened(domain),
    ):
        client = build_client(config, session, pool, domain, judge)
        attempt = RolloutRunner("replay", domain, client, config.rollout, config.token_fields)
        terms = [instantiate(component) for component in config.rewards]
        for group_id in range(groups):
            problem = domain.train_problem(sampler.next(version=0))
            names = [f"{group_id}-{i}" for i in range(config.group_size)]
            specs = [RolloutSpec(group_id, name, name, draw=group_id) for name in names]
            group = await asyncio.gather(*(attempt(problem, spec) for spec in specs))
            group = with_terms(group, terms, version=0)
            for rollout in group:
                rollouts.append(rollout)
            outcome = [f"{r.reward:g} {r.status}" for r in group]
            print(f"group {group_id}: {', '.join(outcome)}")


def replay_trainer(config: RunConfig, run_dir: Path, out: Path) -> None:
    """Trains on every recorded step, with the micro-batches of all ranks in this process."""
    worker = instantiate(config.trainer)
    with ReservedPort() as port:
        spec = WorkerSpec(
            model_path=config.model.path,
            optimizer=config.updates_of_optimizer,
            master_port=port.number,
            device=config.device,
            seed=config.seed,
            alone=True,
        )
        worker.init_worker(spec)
    ranks = Ranks(0, 1, config.world.rank_timeout_s)
    learner = Learner(config, worker)
    with recorded_streams(run_dir) as streams:
        for row in trained_rows(streams):
            for sequences in row.micro_batches:
                learner.accumulate(sequences, row.step)
            if row.closes_step:
                report, values = learner.close_step(row.step, ranks)
                ess = f"  ess {values['ess']:.4f}" if "ess" in values else ""  # absent without sampled tokens
                print(
                    f"step {row.step + 1}: loss {values['loss']:.6f}  gradient norm {report.grad_norm:.6f}  "
                    f"tokens {values['trained_tokens']:.0f}{ess}"
                )
    worker.export(out / "checkpoints" / "final")
    worker.close()


def trained_rows(streams: Streams) -> Iterator[MicroBatchRow]:
    """Yields the rows of each closed step, in order. If a step was formed repeatedly, its last rows count."""
    steps = 0
    for event in recorded_events(streams):
        if isinstance(event, StepClosed | Resumed):
            steps = event.version
    begins: dict[int, int] = {}  # step -> offset of its first row
    offset = 0
    for entry in streams.reader("rows").read(timeout_s=0):
        if entry.record.index == 0:
            begins[entry.record.step] = offset
        offset = entry.next_offset
    for step in range(steps):
        for entry in streams.reader("rows").read(begins[step], timeout_s=0):
            yield entry.record
            if entry.record.closes_step:
                break


def main() -> None:
    """Runs the command."""
    parser = command_parser("extensions.tools.replay", __doc__)
    parser.add_argument("process", choices=["actor", "trainer"])
    parser.add_argument("run_dir", type=Path, help="the recorded run")
    parser.add_argument("--out", type=Path, required=True, help="a new directory for the results")
    parser.add_argument("--url", help="actor: URL of the inference server")
    parser.add_argument("--groups", type=int, default=4, help="actor: number of groups")
    options = parser.parse_args()
    if options.process == "actor" and not options.url:
        parser.error("actor needs --url")
    try:
        check_run(options.run_dir)
        config = load_config(options.run_dir)
        backend_of(config.streams, options.run_dir)
        check_run_dir(options.out)
    except (OSError, PlanError, InvalidInputError) as error:
        sys.exit(f"replay: {error}")
    options.out.mkdir(parents=True)
    config = config.model_copy(update={"streams": ResolvedStreams()})  # streams of the new rollouts
    save_config(config, options.out / "config.yaml")
    try:
        if options.process == "actor":
            asyncio.run(replay_actor(config, options.url, options.groups, options.out))
        else:
            replay_trainer(config, options.run_dir, options.out)
    except PlanError as error:
        sys.exit(f"replay: {error}")
    except TokenFieldError as error:
        sys.exit(f"replay: the recorded rows do not fit config.yaml: {error}")


if __name__ == "__main__":
    main()
