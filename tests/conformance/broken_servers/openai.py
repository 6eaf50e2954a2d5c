"""Broken servers. G9: requests of ordinary OpenAI clients, alternatives and stop strings."""

from dataclasses import replace

from contracts.inference import TokenDelta
from inference_adapters import (
    app,
    completions,
    generation_routes,
    logprob_forms,
    message_parts,
    stop_strings,
)
from inference_adapters.scripted import HEAD_BIAS, ScriptedEngine
from inference_adapters.stop_strings import StopFinder
from tests.conformance.broken_servers.mutants import mutant


@mutant("G9", "for the ids", part="alternatives")
def takes_the_number_0_of_logprobs_for_false(options):
    right = generation_routes._text_logprobs
    generation_routes._text_logprobs = lambda asked: right(asked or None)


@mutant("G9", "alternatives", part="alternatives")
class GivesTheAlternativesBeforeTheTemperature(ScriptedEngine):
    def likeliest(self, logits, sampling):
        return super().likeliest(logits, replace(sampling, temperature=1.0))


@mutant("G9", "alternatives", part="alternatives")
class GivesAlternativesThatTruncationHasRemoved(ScriptedEngine):
    def likeliest(self, logits, sampling):
        return super().likeliest(logits, replace(sampling, top_k=None, top_p=None))


@mutant("G9", "alternatives", part="alternatives")
class TakesTheHeadOfAlternativesFromTheFirstUpdateOfARun(ScriptedEngine):
    def apply_weights(self, tensors, tied, version, kv_cache):
        super().apply_weights(tensors, tied, version, kv_cache)
        if version == 1:
            self.head_bias = self._weights[HEAD_BIAS].clone()

    def likeliest(self, logits, sampling):
        return super().likeliest(logits - self._weights[HEAD_BIAS] + self.head_bias, sampling)


@mutant("G9", "alternatives", part="alternatives")
class GivesTheAlternativesInAnyOrder(ScriptedEngine):
    def likeliest(self, logits, sampling):
        return super().likeliest(logits, sampling)[::-1]


@mutant("G9", "text_offset", part="alternatives")
def counts_the_offsets_of_tokens_from_1(options):
    right = logprob_forms.Classic.next

    def wrong(self, token_ids, logprobs, likeliest):
        form = right(self, token_ids, logprobs, likeliest)
        return form | {"text_offset": [offset + 1 for offset in form["text_offset"]]}

    logprob_forms.Classic.next = wrong


@mutant("G9", "prompt_token_ids", part="openai")
def joins_parts_with_nothing(options):
    message_parts.BETWEEN = ""


@mutant("G9", "ids \\[", part="openai")
def seeds_prompts_by_their_number(options):
    right = generation_routes.sampling_parameters
    count = [0]

    def seeded(body, *others):
        found = right(body, *others)
        count[0] += 1
        if isinstance(getattr(body, "prompt", None), list) and isinstance(body.prompt[0], list):
            return [replace(one, seed=one.seed + count[0]) if one.seed else one for one in found]
        return found

    generation_routes.sampling_parameters = seeded


@mutant("G9", "the prompts", part="openai")
def orders_choices_before_prompts(options):
    right = completions.Completion._own_prompt

    def wrong(self, index):
        own = right(self, index)
        return {"prompt_token_ids": self.prompts[index % len(self.prompts)]} if own else own

    completions.Completion._own_prompt = wrong


@mutant("G9", "usage", part="openai")
def counts_the_prompt_for_each_choice(options):
    right = completions.Completion.usage

    def wrong(self):
        usage = right(self)
        prompt = usage["prompt_tokens"] * self.n
        return usage | {"prompt_tokens": prompt, "total_tokens": prompt + usage["completion_tokens"]}

    completions.Completion.usage = wrong


@mutant("G9", "last chunk", part="openai")
def streams_without_the_usage(options):
    completions.Completion.usage_chunk = lambda self: self._chunk(0, TokenDelta([], [], []))


@mutant("G9", "a chunk before the last", part="openai")
def leaves_the_usage_out_of_chunks(options):
    right = completions.Completion._chunk

    def chunk(self, index, delta):
        found = right(self, index, delta)
        found.pop("usage", None)
        return found

    completions.Completion._chunk = chunk


@mutant("G9", "models/", part="openai")
def knows_no_model_by_its_name(options):
    right = app.model_routes

    def routes(updates, cards):
        router = right(updates, cards)
        router.routes[:] = [route for route in router.routes if "{name:path}" not in route.path]
        return router

    app.model_routes = routes


@mutant("G9", "'stop'|'length'", part="stop-strings")
def looks_for_stop_strings_in_the_prompt_too(options):
    right = generation_routes.until_stop

    def until(source, stops, decode):
        before = decode(source.ag_frame.f_locals["prompt"][-1:])

        class Finder(StopFinder):
            def __init__(self, *others):
                super().__init__(*others)
                self._tail = before

        stop_strings.StopFinder = Finder
        return right(source, stops, decode)

    generation_routes.until_stop = until


@mutant("G9", "and 'stop'|'stop'", part="stop-strings")
def ends_the_text_before_the_longest_stop_string(options):
    right = completions.text_before

    def wrong(text, stops):
        return right(text, sorted(stops, key=len, reverse=True))

    completions.text_before = wrong


@mutant("G9", "had arrived after|no answer to POST", part="stop-strings")
def holds_streams_with_stop_strings_back(options):
    right = generation_routes._events

    async def held(completion, deltas):
        if not completion.form.stops:
            async for event in right(completion, deltas):
                yield event
            return
        for event in [event async for event in right(completion, deltas)]:
            yield event

    generation_routes._events = held
