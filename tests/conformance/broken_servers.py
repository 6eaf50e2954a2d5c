"""Inference servers that break one guarantee each: a few lines over the scripted server.

Every mutant names the guarantee that has to catch it, and those that its fault cannot but break as well.
`python -m tests.conformance.broken_servers KeepsThePrefixCache 8001` serves one.
"""

import argparse
import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

import torch

from contracts.inference import (
    ChatCompletionRequest,
    CompletionRequest,
    Health,
    SamplingParameters,
    TokenDelta,
)
from contracts.weights import plan_buckets, receive_weights
from inference_adapters import manifest_check, scripted, weight_updates
from inference_adapters.scripted import BIAS, EOS, NORM, ScriptedEngine
from inference_adapters.serve import arguments, run
from inference_adapters.threads import in_daemon_thread

TOKEN = "secret"
TOKEN_DELAY_S = 0.002


@dataclass(frozen=True)
class Mutant:
    make: Callable[[argparse.Namespace], ScriptedEngine]
    own: str  # the guarantee that names the fault
    says: str  # what the kit measures: a regular expression
    also: frozenset[str]  # those that it breaks as well

    @property
    def caught_by(self) -> frozenset[str]:
        return self.also | {self.own}


MUTANTS: dict[str, Mutant] = {}


def mutant(own: str, says: str, also: str = "") -> Callable:
    """Registers an engine class, or a function that breaks the server around a correct engine."""

    def register(broken: Callable) -> Callable:
        def make(options: argparse.Namespace) -> ScriptedEngine:
            if isinstance(broken, type):
                return broken(TOKEN_DELAY_S)
            broken(options)
            return ScriptedEngine(TOKEN_DELAY_S)

        MUTANTS[broken.__name__] = Mutant(make, own, says, frozenset(also.split()))
        return broken

    return register


@mutant("none", "")
class Correct(ScriptedEngine):
    """The control: it passes everything."""


# --- G1: content ----------------------------------------------------------------------------------


@mutant("G1", "greedy token|log-probability", also="G2 G3 G4 G5 G6 G7 G8 G9")
class SwapsTwoTensors(ScriptedEngine):
    def apply_weights(self, tensors, tied, version, kv_cache):
        swapped = dict(tensors) | {BIAS: tensors[NORM], NORM: tensors[BIAS]}
        super().apply_weights(swapped, tied, version, kv_cache)


@mutant("G1", "greedy token|log-probability", also="G2 G3 G4 G5 G6 G7 G8 G9")
class IgnoresTheLastBucket(ScriptedEngine):
    async def receive_weights(self, request, progress):
        self.last = {p.name for p in plan_buckets(request.parameters, request.bucket_bytes)[-1]}
        await super().receive_weights(request, progress)

    def apply_weights(self, tensors, tied, version, kv_cache):
        kept = {name: self._weights[name] for name in self.last}
        super().apply_weights(dict(tensors) | kept, tied, version, kv_cache)


@mutant("G1", "greedy token|log-probability", also="G2 G3 G4 G5 G6 G7 G8 G9")
class LeavesTheTiedHeadStale(ScriptedEngine):
    def __init__(self, token_delay_s):
        super().__init__(token_delay_s)
        self.head = self._weights[scripted.EMBED].clone()

    def _logits(self, states):
        return (self._weights[NORM] * states) @ self.head.T + self._weights[scripted.HEAD_BIAS]


@mutant("G1", "labels .* after version . was live", also="G2 G3 G4 G5 G6 G7 G8 G9")
class SaysLiveBeforeItIs(ScriptedEngine):
    def apply_weights(self, tensors, tied, version, kv_cache):
        held = {name: tensor.clone() for name, tensor in tensors.items()}
        later = (0.3, super().apply_weights, held, tied, version, kv_cache)
        self._loop.call_soon_threadsafe(self._loop.call_later, *later)


# --- G2: in flight --------------------------------------------------------------------------------


@mutant("G2", "ended with 'abort'", also="G5 G7 G8")
class DropsRequestsInFlight(ScriptedEngine):
    def apply_weights(self, tensors, tied, version, kv_cache):
        super().apply_weights(tensors, tied, version, kv_cache)
        for sequence in self._sequences:
            sequence.aborted = True


@mutant("G2", "had tokens of version 1", also="G5")
class RestartsRequestsInFlight(ScriptedEngine):
    async def _generate(self, prompt, sampling) -> AsyncIterator[TokenDelta]:
        restarted = True
        while restarted:
            version, restarted, deltas = self._version, False, []
            async for delta in super()._generate(prompt, sampling):
                deltas.append(delta)
                if restarted := self._version != version:
                    break
        for delta in deltas:
            yield delta


@mutant("G2", "labelled 3|labelled 4|labelled 5: log-probability", also="G5")
class IgnoresRecompute(ScriptedEngine):
    def apply_weights(self, tensors, tied, version, kv_cache):
        super().apply_weights(tensors, tied, version, "keep")


@mutant("G2", "sampled by version 1", also="G5 G7")
class FinishesWithOldWeights(ScriptedEngine):
    """Offers only `keep`, and keeps more than keys and values; the labels change as they should."""

    def info(self):
        return super().info().model_copy(update={"kv_cache": ["keep"]})

    async def _generate(self, prompt, sampling):
        old = ScriptedEngine(self.token_delay_s)
        old._generator = self._generator
        old._weights = {name: weight.clone() for name, weight in self._weights.items()}
        self._sequences.add(running := object())
        try:
            async for delta in old._generate(prompt, sampling):
                yield replace(delta, versions=[self._version for _ in delta.versions])
        finally:
            self._sequences.discard(running)

    async def abort_requests(self):
        pass


@mutant("G2", "no answer while the update was staged", also="G7")
class StopsForAStagedTransfer(ScriptedEngine):
    async def receive_weights(self, request, progress):
        await self._set_paused(True)
        try:
            await super().receive_weights(request, progress)
        finally:
            await self._set_paused(False)


@mutant("G2", "503", also="G8")
class RefusesWhatArrivesMeanwhile(ScriptedEngine):
    receiving = False

    def health(self):
        if self.receiving:
            return Health(status="unhealthy", reason="receiving weights")
        return super().health()

    async def receive_weights(self, request, progress):
        self.receiving = True
        try:
            await super().receive_weights(request, progress)
        finally:
            self.receiving = False


# --- G3: stale cache ------------------------------------------------------------------------------


@mutant("G3", "greedy token|log-probability", also="G1 G2 G5 G6 G7 G8 G9")  # wherever a prompt comes again
class KeepsThePrefixCache(ScriptedEngine):
    def __init__(self, token_delay_s):
        super().__init__(token_delay_s)
        self.cache = {}

    def _states(self, token_ids):
        return self.cache.setdefault(tuple(token_ids), super()._states(token_ids))


@mutant("G3", "greedy token|log-probability", also="G1 G2 G5 G6 G7 G8 G9")
class FillsTheCacheAfterTheUpdate(ScriptedEngine):
    """Emptied by every update, and filled by requests that began before it."""

    def __init__(self, token_delay_s):
        super().__init__(token_delay_s)
        self.cache = {}

    def _states(self, token_ids):
        return self.cache.get(tuple(token_ids), super()._states(token_ids))

    async def _generate(self, prompt, sampling):
        states = super()._states(prompt)
        try:
            async for delta in super()._generate(prompt, sampling):
                yield delta
        finally:
            self.cache[tuple(prompt)] = states

    def apply_weights(self, tensors, tied, version, kv_cache):
        super().apply_weights(tensors, tied, version, kv_cache)
        self.cache.clear()


# --- G4: log-probability semantics ----------------------------------------------------------------


@mutant("G4", "token .* log-probability")
def returns_raw_logprobs(options):
    right = scripted._sample

    def raw(logits, sampling, generator):
        token_id, _ = right(logits, sampling, generator)
        return token_id, float(torch.log_softmax(logits, -1)[token_id])

    scripted._sample = raw


@mutant("G4", "standard errors")
def draws_from_another_distribution(options):
    right = scripted._sample

    def cooled(logits, sampling, generator):
        if sampling.temperature in (0, 1) or sampling.top_k or sampling.top_p:
            return right(logits, sampling, generator)
        token_id, _ = right(logits, replace(sampling, temperature=1.0), generator)
        return token_id, float(torch.log_softmax(logits / sampling.temperature, -1)[token_id])

    scripted._sample = cooled


# --- G5: honest versions --------------------------------------------------------------------------


def relabelled(label: Callable[[ScriptedEngine, int], int]) -> type[ScriptedEngine]:
    class Relabels(ScriptedEngine):
        async def _generate(self, prompt, sampling):
            async for delta in super()._generate(prompt, sampling):
                yield replace(delta, versions=[label(self, version) for version in delta.versions])

    return Relabels


@mutant("G5", "labels .*2, 0, 24.* after version 1", also="G1 G2 G6 G7 G8")
class LabelsWithTheNextVersion(relabelled(lambda engine, version: version + 1)):
    pass


@mutant("G5", "labels .*0, 0, 24.* after version 1", also="G1 G2 G6 G7 G8")
class LabelsWithTheOldVersion(relabelled(lambda engine, version: max(0, version - 1))):
    pass


@mutant("G5", "labelled 1: log-probability", also="G2 G8")
class LabelsWithTheVersionAtTheStart(ScriptedEngine):
    async def _generate(self, prompt, sampling):
        first = None
        async for delta in super()._generate(prompt, sampling):
            first = delta.versions[0] if first is None and delta.versions else first
            yield replace(delta, versions=[first for _ in delta.versions])


# --- G6: clean refusal ----------------------------------------------------------------------------


@mutant("G6", "^202")
def accepts_an_older_version(options):
    right = weight_updates.WeightUpdates._check_update

    def check(self, request):
        self._any_version = True
        right(self, request)

    weight_updates.WeightUpdates._check_update = check


@mutant("G6", "^202")
class AcceptsAWrongShapeAndPads(ScriptedEngine):
    async def start(self, version):
        await super().start(version)
        right = manifest_check._check_parameter

        def check(parameter, shapes, tied, dtypes):
            shape = shapes.get(parameter.name, ())
            right(parameter.model_copy(update={"shape": shape}), shapes, tied, dtypes)

        manifest_check._check_parameter = check

    def apply_weights(self, tensors, tied, version, kv_cache):
        padded = {name: torch.zeros_like(weight) for name, weight in self._weights.items()}
        for name, tensor in tensors.items():
            padded[name].view(-1)[: tensor.numel()] = tensor.reshape(-1)[: padded[name].numel()]
        super().apply_weights(padded, tied, version, kv_cache)


@mutant("G6", "^202")
def ignores_an_unknown_weight(options):
    right = manifest_check._check_parameter

    def check(parameter, shapes, tied, dtypes):
        if parameter.name in shapes:
            right(parameter, shapes, tied, dtypes)

    manifest_check._check_parameter = check


@mutant("G6", "^200")
def ignores_an_unknown_parameter(options):
    for model in (ChatCompletionRequest, CompletionRequest):
        model.model_config["extra"] = "ignore"
        model.model_rebuild(force=True)


@mutant("G6", "update_in_progress")
def refuses_a_retry(options):
    weight_updates._fingerprint = lambda request: object()


@mutant("G6", "stale_epoch")
def refuses_a_retried_join(options):
    right = weight_updates.WeightUpdates.join

    async def join(self, request):
        self._joined = None
        return await right(self, request)

    weight_updates.WeightUpdates.join = join


@mutant("G6", "no answer to POST /v1/completions", also="G2 G7")
class StaysPausedWhenCalledOff(ScriptedEngine):
    async def receive_weights(self, request, progress):
        await self._set_paused(True)
        await super().receive_weights(request, progress)


# --- G7: nothing waits for ever -------------------------------------------------------------------


@mutant("G7", "the broadcast failed|'failed'")
class CountsTheWholeTransferAsSilence(ScriptedEngine):
    async def receive_weights(self, request, progress):
        async with asyncio.timeout(request.timeout_s):
            await super().receive_weights(request, progress)


@mutant("G7", "'version': 12345", also="G1 G2 G3 G4 G5 G6 G8 G9 G11")
def reports_another_update(options):
    right = weight_updates._Update.status

    def status(self):
        return right(self).model_copy(update={"version": 12345})

    weight_updates._Update.status = status


@mutant("G7", "'state': 'receiving'")
class HangsWhenTheTrainerDies(ScriptedEngine):
    async def receive_weights(self, request, progress):
        try:
            await super().receive_weights(request, progress)
        except RuntimeError:
            await asyncio.Event().wait()


@mutant("G7", "greedy token|log-probability", also="G2")
class SaysUntouchedAfterHalfAnUpdate(ScriptedEngine):
    async def receive_weights(self, request, progress):
        buckets = receive_weights(self._group, request.parameters, request.bucket_bytes, request.timeout_s)
        async with self._generation_held(progress):
            while bucket := await in_daemon_thread(next, buckets, None):
                progress.bytes += sum(tensor.nbytes for tensor in bucket.values())
                now = self._weights | bucket
                self.apply_weights(now, request.tied, self._version, request.kv_cache)
            self.apply_weights(self._weights, request.tied, request.version, request.kv_cache)


@mutant(
    "G7", "broadcast of version . did not end", also="G2 G3 G4 G5 G6 G8 G9 G11"
)  # whose version 1 is the one that it happens to hold
class SkipsTheVersionThatItHolds(ScriptedEngine):
    async def receive_weights(self, request, progress):
        if request.version != self._version:
            await super().receive_weights(request, progress)


@mutant("G7", "requests of .* tokens with length or stop")
class KeepsRequestsOfAnotherRun(ScriptedEngine):
    async def abort_requests(self):
        pass


# --- G8 to G11 ------------------------------------------------------------------------------------


@mutant("G8", "resident memory grew")
class LeaksMemory(ScriptedEngine):
    leaked: list[bytearray] = []

    def apply_weights(self, tensors, tied, version, kv_cache):
        self.leaked.append(bytearray(b"x" * (1 << 20)))
        super().apply_weights(tensors, tied, version, kv_cache)


@mutant("G9", "'stop'")
class OmitsEndOfSequence(ScriptedEngine):
    async def _generate(self, prompt, sampling):
        async for delta in super()._generate(prompt, sampling):
            yield TokenDelta([], [], [], "stop") if EOS in delta.token_ids else delta


@mutant("G9", "log-probability")
class RetokenisesThePrompt(ScriptedEngine):
    def generate(self, prompt_token_ids: list[int], sampling: SamplingParameters):
        return super().generate(self.encode(self.decode(prompt_token_ids)), sampling)


@mutant("G10", "with no token: .200")
def ignores_the_token(options):
    options.token = None


@mutant("G11", "requests are there")
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


def serve(name: str, port: int) -> None:
    """Serves a mutant until it is killed; runs in a process of its own, which it may spoil."""
    torch.set_num_threads(1)
    options = arguments(__doc__).parse_args(["--port", str(port), "--token", TOKEN])
    logging.disable()  # what fails is the kit's to tell
    run(MUTANTS[name].make(options), options)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mutant", choices=sorted(MUTANTS))
    parser.add_argument("port", type=int)
    chosen = parser.parse_args()
    serve(chosen.mutant, chosen.port)
