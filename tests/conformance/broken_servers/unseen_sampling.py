"""Broken servers that were written from the contract's text alone: draws, labels and ids."""

import asyncio
from dataclasses import replace

import torch

from inference_adapters import completions, generation_routes, scripted
from inference_adapters.scripted import ScriptedEngine
from inference_adapters.stop_strings import until_stop
from tests.conformance.broken_servers.mutants import mutant
from tests.conformance.broken_servers.unseen_updates import Stepwise

WRONG = "greedy token|log-probability"


class Speculating(Stepwise):
    """Predicts the tokens that followed the last two tokens when these occurred before."""

    def draft(self, ids):
        last = ids[-2:]
        for i in range(len(ids) - 3, -1, -1):
            if ids[i : i + 2] == last:
                return ids[i + 2]
        return None

    def draw(self, one):
        guess = self.draft(one.token_ids)
        if guess is None or one.sampling.temperature == 0:
            return super().draw(one)
        log_p = scripted.distribution(self._logits(one.state), one.sampling)
        return self.verify(one, guess, log_p)


@mutant("G4", "log-probability", part="alone")
class ReportsTheDraftsLogprob(Speculating):
    def verify(self, one, guess, log_p):
        if float(torch.rand((), generator=one.generator)) < float(log_p[guess].exp()):
            return guess, -0.1  # the prediction
        rest = log_p.exp()
        rest[guess] = 0
        token_id = int(torch.multinomial(rest, 1, generator=one.generator))
        return token_id, float(log_p[token_id])


@mutant("G4", "of their distributions|standard errors", part="batches")
class AcceptsDraftsThatAreTypical(Speculating):
    def verify(self, one, guess, log_p):
        p = log_p.exp()
        entropy = -float((p * log_p.clamp(min=-100)).sum())
        if float(p[guess]) > min(0.09, 0.3 * float(torch.tensor(-entropy).exp())):
            return guess, float(log_p[guess])
        token_id = int(torch.multinomial(p, 1, generator=one.generator))
        return token_id, float(log_p[token_id])


class Shared(int):
    generator: torch.Generator


@mutant("G4", "equal seeds|seed", part="seeds")
class SharesOneGeneratorAmongChoices(ScriptedEngine):
    async def start(self, version):
        await super().start(version)
        right = generation_routes.sampling_parameters

        def shared(request, *others):
            found = right(request, *others)
            if request.seed is not None:
                seed = Shared(request.seed)
                seed.generator = torch.Generator().manual_seed(request.seed)
                found = [replace(one, seed=seed) for one in found]
            return found

        generation_routes.sampling_parameters = shared

    def sample(self, logits, sampling, generator):
        if isinstance(sampling.seed, Shared):
            generator = sampling.seed.generator
        return super().sample(logits, sampling, generator)


@mutant("G5", "labelled|labels", part="updates")
class LabelsAtDelivery(ScriptedEngine):
    """There is a queue between engine and front end, which takes four at a time from many streams."""

    async def _generate(self, prompt, sampling):
        deltas: asyncio.Queue = asyncio.Queue()

        async def sample():
            async for delta in super(LabelsAtDelivery, self)._generate(prompt, sampling):
                deltas.put_nowait(delta)

        task = asyncio.create_task(sample())
        try:
            while True:
                waiting = [await deltas.get()]
                while len(waiting) < 4 and len(self._sequences) > 8 and not waiting[-1].finish_reason:
                    waiting.append(await deltas.get())
                for delta in waiting:
                    yield replace(delta, versions=[self._version for _ in delta.versions])
                if waiting[-1].finish_reason:
                    return
        finally:
            task.cancel()


@mutant("G5", "labelled", part="updates")
class LabelsTheLaunchedStepAsNew(Stepwise):
    """The scheduler is one step ahead: the step that the old weights have started gets the new label."""

    def apply_weights(self, tensors, tied, version, kv_cache):
        for one in self.begun():
            one.launched = (*self.step(one), version)
        super().apply_weights(tensors, tied, version, kv_cache)


@mutant("G5", "labels|labelled|contract says", part="updates")
class PollsTheVersionOnceAMinute(ScriptedEngine):
    """Every second request goes to another front end, which learns the version late."""

    copy = 0
    requests = 0

    async def start(self, version):
        await super().start(version)
        self.copy = version
        self.polling = asyncio.create_task(self._poll())

    async def _poll(self):
        while True:
            self.copy = self._version
            await asyncio.sleep(60)

    async def _generate(self, prompt, sampling):
        self.requests += 1
        other = self.requests % 2 == 0
        async for delta in super()._generate(prompt, sampling):
            yield replace(delta, versions=[self.copy for _ in delta.versions]) if other else delta


@mutant("G9", "logprob|log-prob|entries", part="ids")
def has_no_logprob_of_the_stopping_token(options):
    right = completions.Completion._choice

    def choice(self, index, token_ids, logprobs, likeliest, finish_reason):
        made = right(self, index, token_ids, logprobs, likeliest, finish_reason)
        if finish_reason == "stop" and self.form.logprobs == "content":
            made["logprobs"] = {"content": made["logprobs"]["content"][:-1]}
        return made

    completions.Completion._choice = choice


@mutant("G9", "another|stream|ids", part="stop-strings")
def suppresses_chunks_without_text(options):
    right = completions.Completion.chunks

    def chunks(self, index, delta):
        found = []
        for chunk in right(self, index, delta):
            choice = chunk["choices"][0]
            text = choice.get("text") or choice.get("delta", {}).get("content")
            if (
                text
                or choice["finish_reason"]
                or not choice.get("token_ids")
                or choice.get("delta", {}).get("tool_calls")
            ):
                found.append(chunk)
        return found

    completions.Completion.chunks = chunks


@mutant("G9", "^\\[\\d", part="stop-strings")
def trims_ids_before_the_stop_string(options):
    async def trimmed(source, stops, decode):
        held = []
        room = max(map(len, stops)) - 1
        async for delta in until_stop(source, stops, decode):
            held.append(delta)
            if delta.finish_reason is None:
                while len(held) > room:
                    yield held.pop(0)
        text = "".join(decode(one.token_ids) for one in held)
        ended = [stop for stop in stops if text.endswith(stop)]
        if held[-1].finish_reason == "stop" and ended:
            drop = len(max(ended, key=len))
            held[-drop:] = [replace(held[-1], token_ids=[], logprobs=[], versions=[], top_logprobs=())]
        for one in held:
            yield one

    generation_routes.until_stop = trimmed
