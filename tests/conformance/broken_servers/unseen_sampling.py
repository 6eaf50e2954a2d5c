"""Broken servers that were written from the contract's text alone: draws, labels and ids."""

from dataclasses import replace

import torch

from inference_adapters import completions, generation_routes, scripted
from inference_adapters.stop_strings import until_stop
from tests.conformance.broken_servers.mutants import mutant
from tests.conformance.broken_servers.unseen_updates import Stepwise


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
