"""Odd servers: what they offer, and what they take."""

from contracts.errors import ContractError, ErrorCode
from contracts.limits import Limits
from inference_adapters import generation_routes
from inference_adapters.places import Places
from inference_adapters.scripted import ScriptedEngine
from tests.conformance.odd_servers.registry import odd


class Declares(ScriptedEngine):
    changes: dict = {}

    def info(self):
        return super().info().model_copy(update=self.changes)


@odd()
class TakesBfloat16Only(Declares):
    changes = {"accepts_dtypes": ["bfloat16"]}


@odd()
class TakesFloat16AndFloat32(Declares):
    changes = {"accepts_dtypes": ["float16", "float32"]}


@odd()
class OnlyRecomputes(Declares):
    changes = {"kv_cache": ["recompute"]}


@odd()
class OnlyKeeps(Declares):
    changes = {"kv_cache": ["keep"]}


@odd()
class OnlyPauses(Declares):
    changes = {"capabilities": ["score", "truncation", "seed", "stream"]}


@odd()
class OffersNothing(Declares):
    changes = {"capabilities": []}


@odd()
class HasWordsThatNobodyKnows(Declares):
    changes = {
        "capabilities": ["lora", "score", "staged", "truncation", "seed", "stream", "embeddings"],
        "backends": ["ucx", "gloo"],
        "kv_cache": ["evict", "keep", "recompute"],
        "accepts_dtypes": ["mxfp4", "float32", "bfloat16"],
    }


SMALL = Limits(max_n=4, min_temperature=0.01, max_connections=128, max_generation_bytes=2**20)


@odd(limits=SMALL)
class HasSmallLimits(ScriptedEngine):
    """It takes less than the contract's limits, and says so."""

    def generate(self, prompt_token_ids, sampling):
        if 0 < sampling.temperature < SMALL.min_temperature:
            raise ContractError(ErrorCode.INVALID_REQUEST, "temperature: below the lowest")
        return super().generate(prompt_token_ids, sampling)

    async def score(self, request):
        if request.temperature < SMALL.min_temperature:
            raise ContractError(ErrorCode.INVALID_REQUEST, "temperature: below the lowest")
        return await super().score(request)

    async def start(self, version):
        await super().start(version)
        right = generation_routes.sampling_parameters

        def sampling_parameters(body, *others):
            if body.n > SMALL.max_n:
                raise ContractError(ErrorCode.INVALID_REQUEST, f"n: at most {SMALL.max_n}")
            return right(body, *others)

        generation_routes.sampling_parameters = sampling_parameters


@odd()
def takes_200_completions():
    """It refuses more of them with 503 `overloaded`: they run, or wait."""
    right = Places.__init__
    Places.__init__ = lambda self, most=200: right(self, most)
