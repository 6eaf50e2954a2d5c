"""Broken servers. G17: prescribed draws."""

from dataclasses import replace

import torch

from contracts.draws import uniform
from inference_adapters import generation_routes, request_checks
from inference_adapters.scripted import ScriptedEngine, distribution
from tests.conformance.broken_servers.mutants import mutant
from tests.conformance.broken_servers.sampling import resampled

WRONG = "from the prescribed number"


@mutant("G17", WRONG, part="rule")
class DrawsForItself(resampled(lambda engine, s: replace(s, draw_key=None))):
    pass


@mutant("G17", WRONG, part="rule")
class CountsDrawsFromOne(ScriptedEngine):
    def prescribed(self, logits, sampling, number):
        return super().prescribed(logits, sampling, number + 1)


@mutant("G17", WRONG, part="rule")
class TakesTheKeyForASeed(ScriptedEngine):
    def prescribed(self, logits, sampling, number):
        seed = int.from_bytes(sampling.draw_key[:7], "little") + number
        return self.sample(logits, sampling, torch.Generator().manual_seed(seed))


@mutant("G17", WRONG, part="rule")
class DrawsInTheOrderOfProbability(ScriptedEngine):
    def prescribed(self, logits, sampling, number):
        ordered, order = distribution(logits, sampling).sort(descending=True)
        below = ordered.exp().cumsum(0, dtype=torch.float64)
        drawn = uniform(sampling.draw_key, number) * below[-1]
        place = int(torch.searchsorted(below, drawn, right=True))
        return int(order[place]), float(ordered[place])


@mutant("G17", WRONG, part="rule")
class ForgetsKeysBesideOthers(ScriptedEngine):
    def prescribed(self, logits, sampling, number):
        if len(self._sequences) > 8:
            return self.sample(logits, sampling, self._generator)
        return super().prescribed(logits, sampling, number)


@mutant("G17", WRONG, part="rule")
def gives_all_choices_the_first_key(options):
    right = generation_routes.sampling_parameters

    def alike(request, *others):
        found = right(request, *others)
        return [replace(one, draw_key=found[0].draw_key) for one in found]

    generation_routes.sampling_parameters = alike


@mutant("G17", WRONG, part="update")
class CountsAnewAfterRecomputing(ScriptedEngine):
    """What a request has sampled becomes a part of its prompt."""

    counted_mode = "recompute"

    def __init__(self, *options):
        super().__init__(*options)
        self.updates = 0

    def apply_weights(self, tensors, tied, version, kv_cache):
        super().apply_weights(tensors, tied, version, kv_cache)
        self.updates += kv_cache == self.counted_mode

    async def _generate(self, prompt, sampling):
        counted = _Counted(sampling, self)
        async for delta in super()._generate(prompt, counted if sampling.draw_key else sampling):
            yield delta

    def prescribed(self, logits, sampling, number):
        if sampling.updates != self.updates:
            sampling.updates = self.updates
            sampling.since = number
        return super().prescribed(logits, sampling, number - sampling.since)


class _Counted:
    """Sampling parameters that know how many tokens came before the last update."""

    def __init__(self, sampling, engine):
        self._sampling = sampling
        self.updates = engine.updates
        self.since = 0

    def __getattr__(self, name):
        return getattr(self._sampling, name)


@mutant("G17", WRONG, part="update")
class CountsAnewAfterKeeping(CountsAnewAfterRecomputing):
    counted_mode = "keep"


@mutant("G17", WRONG, part="sleep")
class CountsAnewAfterASleep(CountsAnewAfterRecomputing):
    counted_mode = "none"

    def release(self, keep):
        super().release(keep)
        self.updates += 1


@mutant("G17", WRONG, part="rule")
def forgets_the_keys_of_streamed_chats(options):
    right = generation_routes.sampling_parameters

    def forgetful(request, *others):
        found = right(request, *others)
        lost = request.stream and hasattr(request, "messages")
        return [replace(one, draw_key=None) for one in found] if lost else found

    generation_routes.sampling_parameters = forgetful


@mutant("G17", "tokens are more than", part="rule")
class RoundsTheNumberToElevenBits(ScriptedEngine):
    def prescribed(self, logits, sampling, number):
        log_p = distribution(logits, sampling)
        below = log_p.exp().cumsum(0, dtype=torch.float64)
        rounded = int(uniform(sampling.draw_key, number) * 2048) / 2048
        token_id = int(torch.searchsorted(below, rounded * below[-1], right=True))
        return token_id, float(log_p[token_id])


@mutant("G17", "^200 ", part="refusals")
def takes_keys_beside_a_seed(options):
    request_checks.check_draws = lambda request, has_logprobs: None


@mutant("G17", "^200 ", part="refusals")
def takes_more_keys_than_choices(options):
    right = generation_routes.check_draw_keys

    def lax(request, prompts):
        if len(request.draw_keys or ()) < request.n * prompts:
            right(request, prompts)

    generation_routes.check_draw_keys = lax
