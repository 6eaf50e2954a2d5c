"""Compiles and runs programs of C++, each in a box. What is compiled is kept in memory."""

from collections import OrderedDict
from hashlib import sha256

from extensions.programs.messages import Box
from extensions.programs.namespaces import setup_of
from extensions.programs.pool import Programs, Ran
from pipelinerl.judging.isolation import Limits
from pipelinerl.judging.template import TemplateError

COMPILE_S = 10.0  # CPU time of the compiler
COMPILER_LIMITS = Limits(memory_bytes=2 << 30, cpu_s=int(COMPILE_S))
COMPILED_BYTES = 16 << 20  # the longest compiled program
KEPT_BYTES = 64 << 20
INNOCENT = b"""#include <iostream>
#include <string>
int main() { std::string line; std::getline(std::cin, line); std::cout << line << std::endl; }
"""


class Cpp:
    """Runs programs of C++. `compilations` counts those that were not kept from before."""

    def __init__(self, limits: Limits, cpu_s: float, output_bytes: int):
        self._compiler = Programs(
            setup_of(Box.COMPILER, COMPILER_LIMITS, COMPILE_S), COMPILE_S, COMPILED_BYTES
        )
        self._binaries = Programs(setup_of(Box.BINARY, limits, cpu_s), cpu_s, output_bytes)
        self._kept: OrderedDict[bytes, Ran] = OrderedDict()
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
        await self._compiler.close()
        await self._binaries.close()

    async def compiled(self, source: bytes) -> Ran:
        """Returns what the compiler did; its output is the program. Raises WorkerLostError."""
        key = sha256(source).digest()
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        self.compilations += 1
        ran = await self._compiler.run(b"", None, source)
        if not ran.why_not:
            self._kept[key] = ran
            while sum(len(each.output) for each in self._kept.values()) > KEPT_BYTES:
                self._kept.popitem(last=False)
        return ran

    async def run(self, compiled: bytes, given: bytes) -> Ran:
        """Runs a compiled program on this standard input. Raises WorkerLostError."""
        return await self._binaries.run(compiled, None, given)
