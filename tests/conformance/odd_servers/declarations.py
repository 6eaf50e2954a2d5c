"""Odd servers: the features they declare, and the requests they accept."""

from fastapi import APIRouter

from contracts.errors import ContractError, ErrorCode
from contracts.limits import Limits
from inference_adapters import app, generation_routes, weight_updates
from inference_adapters.scripted import ScriptedEngine
from tests.conformance.odd_servers.registry import odd


class Declares(ScriptedEngine):
    changes: dict = {}

    def info(self):
        return super().info().model_copy(update=self.changes)


@odd(on="G1/formats G4/alone G4/scores")
class TakesBfloat16Only(Declares):
    changes = {"accepts_dtypes": ["bfloat16"]}


@odd(on="G1/formats G6/requests")
class TakesFloat16AndFloat32(Declares):
    changes = {"accepts_dtypes": ["float16", "float32"]}


@odd(on="G2/modes G3/updates")
class OnlyRecomputes(Declares):
    changes = {"kv_cache": ["recompute"]}


@odd(on="G2/modes G5/updates")
class OnlyKeeps(Declares):
    changes = {"kv_cache": ["keep"]}


@odd(on="G1/events G2/arrivals G5/failed-update G6/receiving")
class OnlyPauses(Declares):
    changes = {"capabilities": ["score", "truncation", "seed", "stream"]}


@odd(on="G2/several G4/batches G6/requests G9/ids G9/texts G9/routes G9/lengths G11/connections")
class OffersNothing(Declares):
    changes = {"capabilities": []}


@odd(on="G1/formats G2/several G6/requests")
class HasWordsThatNobodyKnows(Declares):
    changes = {
        "capabilities": ["lora", "score", "staged", "truncation", "seed", "stream", "embeddings"],
        "backends": ["ucx", "gloo"],
        "kv_cache": ["evict", "keep", "recompute"],
        "accepts_dtypes": ["mxfp4", "float32", "bfloat16"],
    }


@odd(on="G6/requests G9/texts G9/template-options")
class ReadsAnOptionOfItsTemplate(Declares):
    """Renders as the template of `tests.conformance.models` does."""

    changes = {"capabilities": ["template_options"]}

    def encode_chat(self, messages, tools, options=None):
        opening = "loud: " if (options or {}).get("loud") else ""
        return self.encode(opening) + super().encode_chat(messages, tools)


@odd(on="G6/requests G10/metrics")
def has_no_metrics():
    weight_updates.APP_CAPABILITIES = ()
    app.metrics_routes = lambda updates: APIRouter()


SMALL = Limits(max_n=4, min_temperature=0.01, max_connections=128, max_generation_bytes=2**20)


@odd(limits=SMALL, on="G4/batches G6/requests G6/http")
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


@odd(limits=ONE, on="G2/several G4/batches G5/updates G9/ids G9/lines G9/openai")
class HasOneChoice(HasSmallLimits):
    limits = ONE
