"""Broken servers. G6: the codes of refusals, and refusals without a reason."""

from contracts.errors import ContractError, ErrorCode
from inference_adapters import app, error_answers, generation_routes
from inference_adapters.membership import Membership
from inference_adapters.scripted import ScriptedEngine
from inference_adapters.weight_updates import WeightUpdates
from tests.conformance.broken_servers.mutants import mutant
from tests.conformance.broken_servers.unseen_requests import behind


@mutant("G6", "409 .*other_run", part="joins")
def wants_to_be_taken_over_when_it_is_fresh(options):
    right = Membership._check_join

    def check(self, request):
        if self.run is None and not request.takeover:
            raise ContractError(ErrorCode.OTHER_RUN, "this server belongs to no run")
        right(self, request)

    Membership._check_join = check


@mutant("G6", "^504|^500|^200", part="requests")
def looks_for_no_room_in_the_group(options):
    right = Membership._check_join

    def check(self, request):
        right(self, request.model_copy(update={"world_size": 2**16}))

    Membership._check_join = check


@mutant("G6", "'failed'|^200", part="receiving")
def calls_off_an_update_of_another_epoch(options):
    right = WeightUpdates.abort

    async def abort(self, request):
        update = self.ledger.get(request.version)
        epoch = update.outcome.epoch if update else request.epoch
        return await right(self, request.model_copy(update={"epoch": epoch}))

    WeightUpdates.abort = abort


@mutant("G6", "'failed'|^200", part="receiving")
def calls_off_what_another_run_names(options):
    right = WeightUpdates.abort

    async def abort(self, request):
        return await right(self, request.model_copy(update={"run": self.membership.run}))

    WeightUpdates.abort = abort


@mutant("G6", "^500 .* to GET /no_such_route", part="http")
def fails_on_an_unknown_route(options):
    right = error_answers._http_error

    async def answer(request, error):
        if error.status_code == 404:
            return await error_answers._failure(request, error)
        return await right(request, error)

    error_answers._http_error = answer


@mutant("G6", "^404 .* to (POST|DELETE|GET|PUT) /", part="http")
def knows_no_route_by_another_method(options):
    right = app.error_answer

    def answer(error, *arguments):
        if error.code is ErrorCode.METHOD_NOT_ALLOWED:
            error = ContractError(ErrorCode.NOT_FOUND, error.message)
        return right(error, *arguments)

    app.error_answer = answer


@mutant("G6", "^200 .*logprobs", part="values")
def scores_an_empty_sequence(options):
    class Gateway:
        def __init__(self, inner):
            self.inner = inner

        async def __call__(self, scope, receive, send):
            async def filled():
                message = await receive()
                if scope.get("path") == "/score" and b", []" in message.get("body", b""):
                    body = message["body"].replace(b", []", b",[1]")
                    message = message | {"body": body}
                return message

            await self.inner(scope, filled, send)

    behind(Gateway)


class LacksTruncation(ScriptedEngine):
    def info(self):
        info = super().info()
        return info.model_copy(update={"capabilities": [c for c in info.capabilities if c != "truncation"]})


@mutant("G6", "^200 ", part="requests")
class DropsATopKThatItDoesNotOffer(LacksTruncation):
    async def start(self, version):
        await super().start(version)
        right = generation_routes.check_capabilities

        def check(body, capabilities):
            right(body.model_copy(update={"top_k": None}), capabilities)

        generation_routes.check_capabilities = check


@mutant("G6", "unsupported_parameter", part="values")
class RefusesATopKOfNothing(LacksTruncation):
    async def start(self, version):
        await super().start(version)
        right = generation_routes.check_capabilities

        def check(body, capabilities):
            right(body, capabilities)
            if body.top_k is not None:
                raise ContractError(ErrorCode.UNSUPPORTED_PARAMETER, "top_k")

        generation_routes.check_capabilities = check
