"""Odd servers: the features they declare, and the requests they accept."""

from fastapi import APIRouter

from contracts.errors import ContractError, ErrorCode
from contracts.limits import Limits
from inference_adapters import app, capabilities, generation_routes
from inference_adapters.scripted import ScriptedEngine
from tests.conformance.odd_servers.registry import odd


class Declares(ScriptedEngine):
    changes: dict = {}

    def info(self):
        return super().info().model_copy(update=self.changes)


@odd(on="G1 G4")
class TakesBfloat16Only(Declares):
    changes = {"accepts_dtypes": ["bfloat16"]}


@odd(on="G1 G6")
class TakesFloat16AndFloat32(Declares):
    changes = {"accepts_dtypes": ["float16", "float32"]}


@odd(on="G2 G3")
class OnlyRecomputes(Declares):
    changes = {"kv_cache": ["recompute"]}


@odd(on="G2 G5")
class OnlyKeeps(Declares):
    changes = {"kv_cache": ["keep"]}


@odd(on="G1 G2 G5 G6")
class OnlyPauses(Declares):
    changes = {"capabilities": ["score", "truncation", "seed", "stream"]}


@odd(on="G2 G4 G6 G9 G11")
class OffersNothing(Declares):
    changes = {"capabilities": []}


@odd(on="G1 G2 G6")
class HasWordsThatNobodyKnows(Declares):
    changes = {
        "capabilities": ["lora", "score", "staged", "truncation", "seed", "stream", "embeddings"],
        "backends": ["ucx", "gloo"],
        "kv_cache": ["evict", "keep", "recompute"],
        "accepts_dtypes": ["mxfp4", "float32", "bfloat16"],
    }


@odd(on="G6 G10")
def has_no_metrics():
    capabilities.OF_THE_APP = ()
    app.metrics_routes = lambda updates: APIRouter()


SMALL = Limits(max_n=4, min_temperature=0.01, max_connections=128, max_generation_bytes=2**20)


@odd(limits=SMALL, on="G4 G6")
class HasSmallLimits(ScriptedEngine):
    """Accepts less than the contract's limits, and declares it."""

    limits = SMALL

    def generate(self, prompt_token_ids, sampling):
        if 0 < sampling.temperature < self.limits.min_temperature:
            raise ContractError(ErrorCode.INVALID_REQUEST, "temperature: below the lowest")
        return super().generate(prompt_token_ids, sampling)

    async def score(self, request):
        if request.temperature < self.limits.min_temperature:
            raise ContractError(ErrorCode.INVALID_REQUEST, "temperature: below the lowest")
        return await super().score(request)

    async def start(self, version):
        await super().start(version)
        right = generation_routes.sampling_parameters

        def sampling_parameters(body, *others):
            if body.n > self.limits.max_n:
                raise ContractError(ErrorCode.INVALID_REQUEST, f"n: at most {self.limits.max_n}")
            return right(body, *others)

        generation_routes.sampling_parameters = sampling_parameters


ONE = Limits(max_n=1)


@odd(limits=ONE, on="G2 G4 G5 G9")
class HasOneChoice(HasSmallLimits):
    limits = ONE
