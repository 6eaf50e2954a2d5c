"""Broken servers with `as_completed`: faults in lines, seeds, labels, refusals and readers."""

from dataclasses import replace

import msgspec
from starlette.responses import Response

from contracts.errors import ContractError
from inference_adapters import completions, error_answers, generation_routes, streaming
from tests.conformance.broken_servers.arrays import without_checking
from tests.conformance.broken_servers.mutants import mutant


@mutant("G9", "lines of choices", part="lines")
def gives_all_choices_in_each_line(options):
    completions.Completion.alone = lambda self, index: self._with(range(index + 1))


@mutant("G9", "lines of choices", part="lines")
def numbers_each_line_from_0(options):
    right = completions.Completion.alone

    def alone(self, index):
        answer = right(self, index)
        answer["choices"][0]["index"] = 0
        return answer

    completions.Completion.alone = alone


@mutant("G9", "lines of choices", part="lines")
def loses_the_last_choice(options):
    right = generation_routes._lines

    async def lines(completion, deltas):
        sent = []
        async for line in right(completion, deltas):
            sent.append(line)
            if len(sent) < max(2, completion.n):
                yield line

    generation_routes._lines = lines


@mutant("G9", "a choice that ends early arrived after", part="lines")
def sends_the_choices_of_a_prompt_together(options):
    async def lines(completion, deltas):
        ended: dict[int, list[int]] = {}
        async for index, delta in deltas:
            completion.append_delta(index, delta)
            of_prompt = ended.setdefault(index // completion.n, [])
            if delta.finish_reason is not None:
                of_prompt.append(index)
            if len(of_prompt) == completion.n:
                for each in of_prompt:
                    yield msgspec.json.encode(completion.alone(each)) + b"\n"
                of_prompt.clear()

    generation_routes._lines = lines


def changed_line(change):
    """Changes the response in a line, given the completion and the index."""
    right = completions.Completion.alone

    def alone(self, index):
        answer = right(self, index)
        change(self, index, answer)
        return answer

    completions.Completion.alone = alone


@mutant("G9", "by index", part="lines")
def numbers_lines_as_they_end(options):
    def change(completion, index, answer):
        completion.sent = getattr(completion, "sent", -1) + 1
        answer["choices"][0]["index"] = completion.sent

    changed_line(change)


@mutant("G9", "lines of {", part="lines")
def gives_each_line_an_id_of_its_own(options):
    changed_line(lambda completion, index, answer: answer.update(id=f"cmpl-{index}"))


@mutant("G9", "by index", part="openai")
def gives_each_line_the_first_prompt(options):
    def change(completion, index, answer):
        if len(completion.prompts) > 1:
            answer["choices"][0]["prompt_token_ids"] = completion.prompts[0]

    changed_line(change)


@mutant("G9", "'stop'", part="stop-strings")
def cuts_no_text_of_lines_at_a_stop_string(options):
    def change(completion, index, answer):
        if "text" in answer["choices"][0]:
            answer["choices"][0]["text"] = completion.decode(completion.choices[index].token_ids)

    changed_line(change)


@mutant("G9", "alternatives", part="alternatives")
def loses_the_likeliest_tokens_in_lines(options):
    def change(completion, index, answer):
        for token in (answer["choices"][0]["logprobs"] or {}).get("content") or []:
            token["top_logprobs"] = []

    changed_line(change)


@mutant("G9", "payload is not completed", part="lines")
def sends_no_lines_without_log_probabilities(options):
    def change(completion, index, answer):
        if completion.form.logprobs == "none":
            raise ValueError("there are no log-probabilities")

    changed_line(change)


@mutant("G9", "text/event-stream", part="lines")
def calls_lines_events(options):
    streaming.LineStream.media_type = "text/event-stream"


@mutant("G9", "^200 application/x-ndjson", part="lines")
def ends_all_lines_but_the_last(options):
    right = generation_routes._lines

    async def lines(completion, deltas):
        between = b""
        async for line in right(completion, deltas):
            yield between + line.removesuffix(b"\n")
            between = b"\n"

    generation_routes._lines = lines


@mutant("G5", "labelled", part="updates")
def labels_lines_with_the_last_version(options):
    def change(completion, index, answer):
        labels = answer["choices"][0]["weight_versions"]
        if labels:
            answer["choices"][0]["weight_versions"] = [labels[-1] | {"start": 0}]

    changed_line(change)


@mutant("G4", "equal seeds|choices .* both", part="seeds")
def forgets_the_seed_of_lines(options):
    right = generation_routes.sampling_parameters

    def without_seeds(body, *others):
        sampling = right(body, *others)
        return [replace(each, seed=None) for each in sampling] if body.as_completed else sampling

    generation_routes.sampling_parameters = without_seeds


@mutant("G6", "^200 ", part="requests")
def refuses_in_a_line(options):
    right = generation_routes.sampling_parameters
    answered = error_answers._contract_error

    def noted(body, *others):
        try:
            return right(body, *others)
        except ContractError as error:
            error.in_a_line = body.as_completed
            raise

    async def answer(request, error):
        if getattr(error, "in_a_line", False):
            return Response(error_answers.error_body(error) + b"\n", 200)
        return await answered(request, error)

    generation_routes.sampling_parameters = noted
    error_answers._contract_error = answer


@mutant("G7", r"200 \[\]", part="takeover")
def sends_no_line_of_an_aborted_choice(options):
    right = generation_routes._lines

    async def lines(completion, deltas):
        async for line in right(completion, deltas):
            if b'"finish_reason":"abort"' not in line:
                yield line

    generation_routes._lines = lines


async def awaited(value):
    return await value


@mutant("G11", "had a line each", part="lines")
def forgets_its_reader_after_the_first_line(options):
    async def sent(self, scope, receive, send):
        parts = self.body_iterator
        with self._stack:
            head = {"type": "http.response.start", "status": 200, "headers": []}
            await send(head | {"headers": [(b"content-type", self.media_type.encode())]})
            first = await streaming.until_disconnect(receive, awaited(anext(parts)))
            if first is None:
                await parts.aclose()
                return
            await send({"type": "http.response.body", "body": first, "more_body": True})
            async for part in parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    streaming.LineStream.__call__ = sent


@mutant("G9", "a choice that ends early arrived after", part="lines")
def holds_all_lines_until_the_last_choice_has_ended(options):
    right = generation_routes._lines

    async def lines(completion, deltas):
        for line in [line async for line in right(completion, deltas)]:
            yield line

    generation_routes._lines = lines


@mutant("G9", "are both", part="lines")
def repeats_the_first_choice(options):
    right = completions.Completion.alone

    def alone(self, index):
        first = next(choice for choice in self.choices if choice.finish_reason)
        self.choices[index] = first
        return right(self, index)

    completions.Completion.alone = alone


@mutant("G11", "are there", part="connections")
def generates_on_when_the_reader_of_lines_has_left(options):
    async def sent(self, scope, receive, send):
        parts = [part async for part in self.body_iterator]
        await Response(b"".join(parts), media_type=self.media_type)(scope, receive, send)

    streaming.LineStream.__call__ = sent


@mutant("G6", "^200 ", part="requests")
def streams_what_is_to_come_as_it_completes(options):
    without_checking("as_completed")
