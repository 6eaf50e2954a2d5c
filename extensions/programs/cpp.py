"""Compiles and runs programs of C++, each in a box. What is compiled is kept in memory."""

import asyncio
from collections import OrderedDict
from functools import partial
from hashlib import sha256

from extensions.programs.messages import Box
from extensions.programs.namespaces import setup_of
from extensions.programs.pool import PATIENCE, Programs, Ran
from pipelinerl.judging.isolation import Limits
from pipelinerl.judging.template import TemplateError

COMPILE_S = 10.0  # CPU time of the compiler
COMPILER_LIMITS = Limits(memory_bytes=2 << 30, cpu_s=int(COMPILE_S) + 1)
COMPILED_BYTES = 16 << 20  # the longest compiled program
KEPT_BYTES = 64 << 20
ENTRY_BYTES = 1024  # of an entry beside the program
INNOCENT = b"""#include <iostream>
#include <string>
int main() { std::string line; std::getline(std::cin, line); std::cout << line << std::endl; }
"""


class Cpp:
    """Runs programs of C++. `compilations` counts those that were not kept from before."""

    def __init__(self, limits: Limits, cpu_s: float, output_bytes: int):
        patience_s = PATIENCE * COMPILE_S  # CPU time decides, because a compiler does not sleep
        setup = setup_of(Box.COMPILER, COMPILER_LIMITS, patience_s)
        self._compiler = Programs(setup, COMPILE_S, COMPILED_BYTES)
        self._binaries = Programs(setup_of(Box.BINARY, limits, cpu_s), cpu_s, output_bytes)
        self._kept: OrderedDict[bytes, Ran] = OrderedDict()
        self._kept_bytes = 0
        self._compiling: dict[bytes, asyncio.Task[Ran]] = {}
        self.compilations = 0

    async def start(self) -> None:
        """Compiles and runs a program. Raises TemplateError with the reason if that fails."""
        try:
            compiled = await self.compiled(INNOCENT)
            if not compiled.is_fine:
                raise TemplateError("g++ does not compile a program with <iostream>")
            await self._binaries.start(compiled.output)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await asyncio.gather(self._compiler.close(), self._binaries.close())
        await asyncio.gather(*self._compiling.values(), return_exceptions=True)

    async def compiled(self, source: bytes) -> Ran:
        """Returns what the compiler did; its output is the program. Raises WorkerLostError."""
        key = sha256(source).digest()
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        if key not in self._compiling:
            self.compilations += 1
            self._compiling[key] = asyncio.create_task(self._compiler.run(b"", None, source))
            self._compiling[key].add_done_callback(partial(self._keep, key))
        return await asyncio.shield(self._compiling[key])

    def _keep(self, key: bytes, task: asyncio.Task[Ran]) -> None:
        del self._compiling[key]
        if task.cancelled() or task.exception() or task.result().why_not:
            return
        self._kept[key] = task.result()
        self._kept_bytes += _bytes_of(task.result())
        while self._kept_bytes > KEPT_BYTES:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= _bytes_of(oldest)

    async def run(self, compiled: bytes, given: bytes) -> Ran:
        """Runs a compiled program on this standard input. Raises WorkerLostError."""
        return await self._binaries.run(compiled, None, given)


def _bytes_of(ran: Ran) -> int:
    return len(ran.output) + ENTRY_BYTES
