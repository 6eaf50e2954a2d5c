"""What a test of a program costs, how many are judged in a second, and what is left after many submissions.

    python -m benchmarks.programs [--submissions 10000] [--tests 20] [--at-once 2]

It writes a table. CPU time is that of the verifier, its templates and the programs. It needs bubblewrap and
g++, for programs that write files and for those of C++.
"""

import asyncio
import os
import time
from argparse import Namespace
from collections.abc import Callable

import psutil

from contracts.support.command_line import command_parser
from extensions.programs.tasks import ProgramTask, Test
from extensions.programs.verifier import ProgramVerifier
from pipelinerl.judging.isolation import imported_paths, strongest_level

SQUARES = "```python\nn = int(input())\nprint(sum(i * i for i in range(n)))\n```"
WRITES = SQUARES.replace("\nn", "\nopen('made', 'w')\nn")
CPP = """```cpp
#include <cstdio>
int main() { long n, s = 0; scanf("%ld", &n); for (long i = 0; i < n; i++) s += i * i; printf("%ld", s); }
```"""
BATCH = 100  # submissions that wait
SHORT = 200  # submissions of a measurement of time


def task(tests: int) -> bytes:
    cases = [Test(str(n), str(sum(i * i for i in range(n)))) for n in range(1000, 1000 + tests)]
    return ProgramTask(cases).encoded()


class Measured:
    """CPU and wall seconds since it was made, and what the processes hold."""

    def __init__(self) -> None:
        self._templates = psutil.Process().children()
        self._cpu_s = self._cpu()
        self._began = time.perf_counter()

    def cpu_s(self) -> float:
        return self._cpu() - self._cpu_s

    def wall_s(self) -> float:
        return time.perf_counter() - self._began

    def held(self) -> str:
        """Returns the programs, and the descriptors and resident memory of verifier and templates."""
        every = [psutil.Process(), *self._templates]
        descriptors = sum(process.num_fds() for process in every)
        mebibytes = " + ".join(f"{process.memory_info().rss / 2**20:.0f}" for process in every)
        programs = sum(len(template.children()) for template in self._templates)
        return f"{programs} programs, {descriptors} descriptors, {mebibytes} MiB"

    def _cpu(self) -> float:
        return sum(os.times()[:2]) + sum(sum(template.cpu_times()[:4]) for template in self._templates)


async def submitted(
    verifier: ProgramVerifier, tests: int, submissions: int, at_once: int, text: str = SQUARES
) -> None:
    """Judges this many submissions, so many at a time. Raises SystemExit if one is not right."""
    free = asyncio.Semaphore(at_once)
    sent = task(tests)

    async def one() -> str:
        async with free:
            return (await verifier.judged(sent, text)).outcome

    for begin in range(0, submissions, BATCH):
        outcomes = set(await asyncio.gather(*(one() for _ in range(min(BATCH, submissions - begin)))))
        if outcomes != {"right"}:
            raise SystemExit(f"submissions were {outcomes}")


async def measured(verifier: ProgramVerifier, given: Namespace, say: Callable[[str], None]) -> None:
    say("| | |\n|---|---|")
    await submitted(verifier, 1, 10, given.at_once)
    now = Measured()
    await submitted(verifier, 1, SHORT, given.at_once)
    say(f"| CPU time of a submission of one test | {1000 * now.cpu_s() / SHORT:.1f} ms |")
    now = Measured()
    await submitted(verifier, given.tests, SHORT // given.tests, given.at_once)
    count = SHORT // given.tests * given.tests
    say(f"| CPU time of a test, of {given.tests} in a submission | {1000 * now.cpu_s() / count:.1f} ms |")
    say(f"| tests a second, {given.at_once} submissions at once | {count / now.wall_s():.0f} |")
    for name, text in (("that writes a file", WRITES), ("of C++, compiled before", CPP)):
        await submitted(verifier, 1, 1, 1, text)
        now = Measured()
        await submitted(verifier, given.tests, SHORT // given.tests, given.at_once, text)
        say(f"| CPU time of a test {name} | {1000 * now.cpu_s() / count:.1f} ms |")
    before = now.held()
    await submitted(verifier, 1, given.submissions, given.at_once)
    say(f"| before {given.submissions:,} submissions | {before} |")
    say(f"| after them | {now.held()} |")


async def main() -> None:
    parser = command_parser("benchmarks.programs", __doc__)
    parser.add_argument("--submissions", type=int, default=10_000)
    parser.add_argument("--tests", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=2)
    given = parser.parse_args()
    level, why_not = strongest_level(imported_paths())
    print(f"level {level} {why_not}")
    verifier = ProgramVerifier(language=["python", "cpp"])
    try:
        await verifier.start(level)
        await measured(verifier, given, print)
    finally:
        await verifier.close()


if __name__ == "__main__":
    asyncio.run(main())
