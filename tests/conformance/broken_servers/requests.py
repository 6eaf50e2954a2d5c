"""Broken servers. G8 to G11."""

import asyncio
import os

from contracts.inference import EngineInfo, SamplingParameters, TokenDelta
from contracts.support.token import TOKEN_VARIABLE
from inference_adapters import control_routes
from inference_adapters.scripted import EOS, ScriptedEngine
from tests.conformance.broken_servers.mutants import mutant


@mutant("G8", "resident memory.* updates under load", part="updates")
class LeaksMemory(ScriptedEngine):
    leaked: list[bytearray] = []

    def apply_weights(self, tensors, tied, version, kv_cache):
        self.leaked.append(bytearray(b"x" * (1 << 20)))
        super().apply_weights(tensors, tied, version, kv_cache)


@mutant("G9", "'stop'", part="lines")
class OmitsEndOfSequence(ScriptedEngine):
    async def _generate(self, prompt, sampling):
        async for delta in super()._generate(prompt, sampling):
            yield TokenDelta([], [], [], "stop") if EOS in delta.token_ids else delta


@mutant("G9", "and 'stop'; end_token_ids", part="end-of-sequence")
class TellsFewerEndsThanItStopsAt(ScriptedEngine):
    def info(self) -> EngineInfo:
        return super().info().model_copy(update={"end_token_ids": []})


@mutant("G9", "and 'length'; end_token_ids", part="end-of-sequence")
class TellsAnEndThatDoesNotStopIt(ScriptedEngine):
    def info(self) -> EngineInfo:
        return super().info().model_copy(update={"end_token_ids": [EOS, 5]})


@mutant("G9", "log-probability", part="ids")
class RetokenisesThePrompt(ScriptedEngine):
    def generate(self, prompt_token_ids: list[int], sampling: SamplingParameters):
        return super().generate(self.encode(self.decode(prompt_token_ids)), sampling)


@mutant("G9", "with and without tools", part="tools")
class HidesTheTools(ScriptedEngine):
    def info(self) -> EngineInfo:
        info = super().info()
        return info.model_copy(update={"capabilities": [*info.capabilities, "tools"]})


@mutant("G10", "with no token: .200", part="routes")
def ignores_the_token(options):
    del os.environ[TOKEN_VARIABLE]


@mutant("G10", "proof 00000", part="proofs")
def proves_with_a_constant(options):
    control_routes.proof_of = lambda token, challenge, address: "0" * 64


@mutant("G11", "requests are there", part="connections")
class GoesOnForAClosedConnection(ScriptedEngine):
    async def _generate(self, prompt, sampling):
        deltas: asyncio.Queue[TokenDelta] = asyncio.Queue()

        async def generate():
            async for delta in super(type(self), self)._generate(prompt, sampling):
                deltas.put_nowait(delta)

        task = asyncio.create_task(generate())
        while not (delta := await deltas.get()).finish_reason:
            yield delta
        yield delta
        await task
