"""Broken servers. G9: stops, streams, texts and ids."""

import json
from dataclasses import replace

from inference_adapters import completions, generation_routes
from inference_adapters.scripted import ScriptedEngine
from tests.conformance.broken_servers.mutants import mutant


def resampled(change) -> type[ScriptedEngine]:
    """Returns an engine that samples with `change(parameters)` instead of the request's parameters."""

    class Resamples(ScriptedEngine):
        def _generate(self, prompt, sampling):
            return super()._generate(prompt, change(sampling))

    return Resamples


@mutant("G9", "\\] and '", part="lengths")
class StopsAtTheFirstStopTokenOfTheList(resampled(lambda s: replace(s, stop_token_ids=s.stop_token_ids[:1]))):
    pass


@mutant("G9", "\\] and '", part="lengths")
class StopsAtTheLastStopTokenOfTheList(resampled(lambda s: replace(s, stop_token_ids=s.stop_token_ids[-1:]))):
    pass


@mutant("G9", "'stop'", part="ids")
class LeavesOutTheStopToken(ScriptedEngine):
    async def _generate(self, prompt, sampling):
        async for delta in super()._generate(prompt, sampling):
            stopped = set(delta.token_ids) & set(sampling.stop_token_ids)
            yield replace(delta, token_ids=[], logprobs=[], versions=[]) if stopped else delta


@mutant("G9", "\\] and '", part="lengths")
class SaysStopAtTheLength(ScriptedEngine):
    async def _generate(self, prompt, sampling):
        async for delta in super()._generate(prompt, sampling):
            short = sampling.max_tokens == 3 and delta.finish_reason
            yield replace(delta, finish_reason="stop") if short else delta


@mutant("G9", "\\] and '", part="lengths")
class SamplesOneTokenTooMany(
    resampled(lambda s: replace(s, max_tokens=s.max_tokens + (s.max_tokens in (1, 16))))
):
    pass


@mutant("G9", "had arrived after|no answer to POST", part="streams")
def holds_a_stream_back_until_the_end(options):
    right = generation_routes._events

    async def held(*arguments):
        for event in [event async for event in right(*arguments)]:
            yield event

    generation_routes._events = held


@mutant("G9", "had arrived after|no answer to POST", part="streams")
def sends_one_chunk_and_holds_the_rest(options):
    right = generation_routes._events

    async def held(*arguments):
        rest = []
        first = True
        async for event in right(*arguments):
            if first:
                yield event
                first = False
            else:
                rest.append(event)
        for event in rest:
            yield event

    generation_routes._events = held


def altered_chunks(change):
    """Changes each chunk of a stream before it is sent."""
    right = completions.Completion._chunk

    def chunk(self, index, delta):
        return change(self, right(self, index, delta))

    completions.Completion._chunk = chunk


@mutant("G9", "first chunk is", part="lengths")
def sends_the_prompt_with_the_last_chunk(options):
    def change(completion, chunk):
        chunk.pop("prompt_token_ids", None)
        if chunk["choices"][0]["finish_reason"]:
            chunk["prompt_token_ids"] = completion.prompts[0]
        return chunk

    altered_chunks(change)


@mutant("G9", "the text|another path gave", part="texts")
def streams_lose_the_last_text(options):
    def change(completion, chunk):
        choice = chunk["choices"][0]
        if choice["finish_reason"]:
            choice |= {"text": ""} if "text" in choice else {"delta": {}}
        return chunk

    altered_chunks(change)


@mutant("G9", "the text", part="texts")
class StripsTheText(ScriptedEngine):
    def decode(self, token_ids):
        return super().decode(token_ids).strip()


@mutant("G9", "prompt_token_ids \\[", part="texts")
class StripsThePrompt(ScriptedEngine):
    def encode(self, text):
        return super().encode(text.strip())


@mutant("G9", "prompt_token_ids \\[", part="texts")
class ShowsOnlyTheLastMessage(ScriptedEngine):
    def encode_chat(self, messages, tools):
        return super().encode_chat(messages[-1:], tools)


@mutant("G9", "prompt_token_ids \\[", part="texts")
class EscapesTheConversation(ScriptedEngine):
    def encode_chat(self, messages, tools):
        escaped = [m | {"content": json.dumps(m["content"])[1:-1]} for m in messages]
        return super().encode_chat(escaped, tools)


@mutant("G9", "prompt_token_ids \\[", part="texts")
def cuts_long_prompts_from_the_left(options):
    right = completions.Completion.__init__

    def short(self, form, prompts, *others):
        right(self, form, [prompt[-1024:] for prompt in prompts], *others)

    completions.Completion.__init__ = short


@mutant("G9", "log-probability", part="texts")
class LosesTheLastIdsOfTheVocabulary(ScriptedEngine):
    def _generate(self, prompt, sampling):
        return super()._generate([min(token_id, 93) for token_id in prompt], sampling)
