"""CPU time that `ServerPool` spends on a request, with all of 16 servers and with 4 of them failing.

python -m benchmarks.server_pool [--requests 4000] [--runs 20]
"""

import asyncio
import contextlib
import statistics
import time

from benchmarks.ratios import ratio_of_medians
from contracts.support.command_line import command_parser
from pipelinerl.clients.faults import ServerUnavailableError
from pipelinerl.clients.server_pool import ServerPool

SERVERS = 16
LIMIT = 8
SHORTEST_S = 0.02  # of the shortest request
SPREAD_S = 0.02


async def seconds_a_request(failing: int, requests: int) -> float:
    """Returns the CPU seconds per request.

    As many requests compete as all servers would accept, each with another length.
    """
    pool = ServerPool(LIMIT)
    await pool.set_servers([str(server) for server in range(SERVERS)])
    left = requests

    async def client(number: int) -> None:
        nonlocal left
        while left > 0:
            with contextlib.suppress(ServerUnavailableError):
                async with pool.server() as url:
                    if int(url) < failing:
                        raise ServerUnavailableError("connection")
                    left -= 1
                    await asyncio.sleep(SHORTEST_S + SPREAD_S * (number * 37 % 128) / 128)

    begin = time.process_time()
    await asyncio.gather(*(client(number) for number in range(SERVERS * LIMIT)))
    return (time.process_time() - begin) / requests


def main() -> None:
    parser = command_parser("benchmarks.server_pool", __doc__)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--runs", type=int, default=20)
    options = parser.parse_args()
    healthy: list[float] = []
    with_failing: list[float] = []
    for _ in range(options.runs):
        healthy.append(asyncio.run(seconds_a_request(0, options.requests)))
        with_failing.append(asyncio.run(seconds_a_request(4, options.requests)))
    print(f"all healthy: {1000 * statistics.median(healthy):.3f} ms of CPU a request")
    print(f"4 of 16 failing: {1000 * statistics.median(with_failing):.3f} ms of CPU a request")
    print(f"ratio of the medians: {ratio_of_medians(with_failing, healthy)}")


if __name__ == "__main__":
    main()
