"""The process of the judging service: python -m pipelinerl.judging --run-dir DIR

The service reads the section `judging` of `DIR/config.yaml` and listens on the socket PIPELINERL_JUDGING. It
writes metrics, and the isolation of its workers to `DIR/judging.json`. Its environment has no secret of the
run. If started as root, it switches to the user nobody after it has opened its files.

Exit status 2: the configuration cannot be met; a restart would fail again. The reason is printed in one line.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from math import ceil
from pathlib import Path

import yaml

from contracts.support.command_line import command_parser
from contracts.support.messages import one_line
from pipelinerl.judging.client import SOCKET_VARIABLE
from pipelinerl.judging.hosted import HostedVerifier, hosted_of
from pipelinerl.judging.isolation import (
    Level,
    Limits,
    drop_privileges,
    imported_paths,
    strongest_level,
    undumpable,
)
from pipelinerl.judging.level import LEVEL_FILE, write_level
from pipelinerl.judging.measurements import Measurements
from pipelinerl.judging.options import JudgingConfig
from pipelinerl.judging.service import Service, bound
from pipelinerl.judging.worker_messages import Setup
from pipelinerl.judging.workers import TemplateError, Workers
from pipelinerl.metrics import MetricsWriter

MEASURED_EVERY_S = 5.0
REFUSED = 2
BUILD_JUDGE = "pipelinerl.judging.verifiers.build_judge"
log = logging.getLogger(__name__)


class JudgingRefusedError(Exception):
    """The service cannot run as the configuration requires."""


async def main(run_dir: Path, options: JudgingConfig) -> None:
    """Serves until the process is terminated. Raises JudgingRefusedError, and TemplateError."""
    askers = {os.getuid()}
    metrics = MetricsWriter(run_dir, "judging")
    with bound(Path(os.environ[SOCKET_VARIABLE])) as listening, (run_dir / LEVEL_FILE).open("w") as file:
        if why := drop_privileges(", ".join(["pipelinerl.judging.worker", *own_modules(options)])):
            log.warning(why)
        undumpable()
        level, why_not = isolation(options)
        log.info("workers are confined at the level %s%s", level, f" ({why_not})" if why_not else "")
        async with workers_at(level, options) as workers, started(level, options) as hosted:
            levels = [str(level), *(verifier.level for verifier in hosted.values() if verifier.level)]
            write_level(file, "; ".join(dict.fromkeys(levels)), why_not)
            log.info("%d workers are ready", options.processes)
            own = {name for name, verifier in hosted.items() if verifier.at_once}
            measurements = Measurements(options.processes, own)
            service = Service(workers, hosted, options, measurements, askers | {os.getuid()})
            async with await asyncio.start_unix_server(service.serve, sock=listening):
                while True:
                    await asyncio.sleep(MEASURED_EVERY_S)
                    measurements.write(metrics, workers.restarts)


@asynccontextmanager
async def started(level: Level, options: JudgingConfig) -> AsyncIterator[Mapping[str, HostedVerifier]]:
    """Yields the hosted verifiers by name. Raises JudgingRefusedError, and TemplateError."""
    try:
        hosted = hosted_of(options)
    except ValueError as error:
        raise JudgingRefusedError(str(error)) from error
    async with AsyncExitStack() as stack:
        for verifier in hosted.values():
            stack.push_async_callback(verifier.close)
            await verifier.start(level)
        yield hosted


def own_modules(options: JudgingConfig) -> set[str]:
    """Returns the verifiers' modules outside this package."""
    modules = {spec["_target_"].rpartition(".")[0] for spec in options.verifiers.values()}
    return {module for module in modules if module.partition(".")[0] != "pipelinerl"}


def isolation(options: JudgingConfig) -> tuple[Level, str]:
    """Returns the workers' level, and the reason why it is not stronger. Raises JudgingRefusedError."""
    if options.isolation == Level.PROCESS:
        level = Level.PROCESS
        why_not = "judging.isolation=process"
    else:
        level, why_not = strongest_level(imported_paths())
    if level is Level.PROCESS and options.hosted and options.require != Level.PROCESS:
        raise JudgingRefusedError(
            f"{next(iter(options.hosted))} runs what the model wrote, and the level would be process: "
            f"{why_not}; judging.require=process runs it all the same"
        )
    needed = Level.SEALED in (options.isolation, options.require)
    if needed and level is not Level.SEALED:
        raise JudgingRefusedError(
            f"judging.isolation={options.isolation}, judging.require={options.require}, and workers can be "
            f"{level} here: {why_not}"
        )
    return level, why_not


def workers_at(level: Level, options: JudgingConfig) -> Workers:
    in_workers = {name: spec for name, spec in options.verifiers.items() if name not in options.hosted}
    judge = {"verifiers": in_workers, "max_characters": options.max_characters}
    limits = Limits(memory_bytes=options.memory_bytes, cpu_s=ceil(options.verdict_s) + 1)
    setup = Setup(BUILD_JUDGE, judge, level, limits, reused=options.reused)
    return Workers(setup, options.processes, options.verdict_s)


if __name__ == "__main__":
    parser = command_parser("pipelinerl.judging", __doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    directory = parser.parse_args().run_dir
    logging.basicConfig(level=logging.INFO, format="%(asctime)s judging %(levelname)s %(message)s")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    given = yaml.safe_load((directory / "config.yaml").read_text())["judging"]
    try:
        asyncio.run(main(directory, JudgingConfig.model_validate(given)))
    except (JudgingRefusedError, TemplateError) as error:
        print(f"judging: {one_line(error)}", file=sys.stderr)
        sys.exit(REFUSED)
