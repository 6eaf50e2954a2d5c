"""Broken servers. G6: refusals on each route, field by field."""

from fastapi.exceptions import RequestValidationError
from starlette.responses import JSONResponse

from contracts import inference
from contracts.errors import ContractError, ErrorCode
from inference_adapters import (
    bodies,
    body_limits,
    control_routes,
    error_answers,
    generation_routes,
    manifest_check,
    request_checks,
)
from inference_adapters.scripted import VOCABULARY, ScriptedEngine
from tests.conformance.broken_servers.mutants import mutant


def lax(*models):
    for model in models:
        model.model_config["extra"] = "ignore"
        model.model_rebuild(force=True)


@mutant("G6", "^504|^202|^404", part="values")
def ignores_unknown_fields_of_joins(options):
    lax(inference.InitProcessGroupRequest)


@mutant("G6", "^202", part="values")
def ignores_unknown_fields_of_parameters(options):
    lax(inference.Parameter, inference.WeightUpdateRequest)


@mutant("G6", "^404", part="values")
def ignores_unknown_fields_of_calls_off(options):
    lax(inference.AbortWeightUpdateRequest)


@mutant("G6", "^200", part="values")
def ignores_unknown_fields_of_scores(options):
    lax(inference.ScoreRequest)


@mutant("G6", "^200", part="values")
def ignores_unknown_fields_of_text_completions(options):
    lax(bodies.TextBody)


@mutant("G6", "^202", part="requests")
def keeps_a_missing_vector(options):
    right = manifest_check._check_complete

    def check(names, shapes):
        right([*names, *(name for name in shapes if len(shapes[name]) == 1 and name not in names)], shapes)

    manifest_check._check_complete = check


@mutant("G6", "^202", part="requests")
def takes_any_tied(options):
    manifest_check._check_tied = lambda sent, tied: None


@mutant("G6", "^202", part="requests")
def takes_a_tied_name_that_is_missing(options):
    right = manifest_check._check_tied
    manifest_check._check_tied = lambda sent, tied: right(tied | sent, tied)


@mutant("G6", "^202", part="requests")
def takes_a_parameter_twice(options):
    right = manifest_check._check_complete
    manifest_check._check_complete = lambda names, shapes: right(list(dict.fromkeys(names)), shapes)


@mutant("G6", "^202", part="requests")
def checks_the_shapes_of_matrices_only(options):
    right = manifest_check._check_parameter

    def check(parameter, shapes, tied, dtypes):
        shape = shapes.get(parameter.name, ())
        if len(shape) == 1:
            parameter = parameter.model_copy(update={"shape": shape, "dtype": dtypes[0]})
        right(parameter, shapes, tied, dtypes)

    manifest_check._check_parameter = check


@mutant("G6", "^200", part="edges")
def refuses_within_the_stream(options):
    right = error_answers._contract_error

    async def answer(request, error):
        if error.code.code == "context_length_exceeded" and b'"stream"' in await request.body():
            body = f"data: {error.body()}\n\ndata: [DONE]\n\n"
            return error_answers.Response(body, 200, media_type="text/event-stream")
        return await right(request, error)

    error_answers._contract_error = answer


@mutant("G6", "was completed by|^200", part="edges")
def cuts_long_prompts(options):
    right = request_checks.check_context

    def check(prompt_length, max_tokens, max_context):
        right(0, max_tokens, max_context)

    request_checks.check_context = check
    sampling = generation_routes.sampling_parameters

    def parameters(request, max_tokens, prompt_length, max_context, first):
        available = max_context - prompt_length
        return sampling(
            request, min(max_tokens or available, max(1, available)), prompt_length, max_context, first
        )

    generation_routes.sampling_parameters = parameters


@mutant("G6", "^4\\d\\d .*context_length", part="edges")
def forgets_a_token_of_the_context_in_chats(options):
    sampling = generation_routes.sampling_parameters

    def check(request, max_tokens, prompt_length, max_context, first):
        if isinstance(request, inference.ChatCompletionRequest):
            max_context -= 1
        return sampling(request, max_tokens, prompt_length, max_context, first)

    generation_routes.sampling_parameters = check


@mutant("G6", "^200|^500", part="edges")
class TakesAnyId(ScriptedEngine):
    def generate(self, prompt_token_ids, sampling):
        return super().generate([i % VOCABULARY for i in prompt_token_ids], sampling)


@mutant("G6", "Not Found.* to GET", part="http")
def has_the_errors_of_its_framework(options):
    async def answer(request, error):
        return JSONResponse({"detail": str(error.detail)}, error.status_code)

    error_answers._http_error = answer


@mutant("G6", "to a body of a byte too many, in chunks", part="http")
def looks_at_declared_lengths_only(options):
    right = body_limits.BodyLimits._read

    async def read(self, scope, receive):
        if body_limits._declared_length(scope):
            return await right(self, scope, receive)
        return b"".join([chunk async for chunk in body_limits._chunks(receive)])

    body_limits.BodyLimits._read = read


@mutant("G6", "^422", part="requests")
def has_one_code_for_all_mistakes_in_updates(options):
    right = control_routes.WeightUpdates.request

    def request(self, request):
        try:
            return right(self, request)
        except ContractError as error:
            if error.code.http_status == 422:
                raise ContractError(ErrorCode.INVALID_REQUEST, error.message) from error
            raise

    control_routes.WeightUpdates.request = request


@mutant("G6", "'code': 422", part="requests")
def tells_numbers_for_codes(options):
    async def answer(request, error: RequestValidationError):
        return JSONResponse({"error": {"code": 422, "message": str(error)[:200]}}, 422)

    error_answers._validation_error = answer
