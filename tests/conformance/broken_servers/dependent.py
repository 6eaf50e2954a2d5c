"""Broken servers. G4: draws that depend on each other, each of which alone is drawn as it should be."""

import itertools

import torch

from inference_adapters import generation_routes
from inference_adapters.scripted import ScriptedEngine, distribution
from tests.conformance.broken_servers.mutants import mutant


class Numbers(ScriptedEngine):
    """Draws by one uniform number a token: `number(request, choice, token)`."""

    def __init__(self, token_delay_s):
        super().__init__(token_delay_s)
        self.count = itertools.count()
        self.noise = torch.Generator().manual_seed(5)
        self.kept = {}

    async def start(self, version):
        await super().start(version)
        right = generation_routes.sampling_parameters

        def numbered(*asked):
            found = right(*asked)
            request = next(self.count)
            for choice, one in enumerate(found):
                object.__setattr__(one, "place", (request, choice))
            return found

        generation_routes.sampling_parameters = numbered

    def fresh(self, key):
        """Returns the number of this key, which is always the same."""
        if key not in self.kept:
            self.kept[key] = float(torch.rand((), generator=self.noise, dtype=torch.float64))
        return self.kept[key]

    async def _generate(self, prompt, sampling):
        tokens = itertools.count()
        object.__setattr__(sampling, "next", lambda: self.number(*sampling.place, next(tokens)))
        async for delta in super()._generate(prompt, sampling):
            yield delta

    def sample(self, logits, sampling, generator):
        if sampling.temperature == 0 or not self.takes(sampling):
            return super().sample(logits, sampling, generator)
        log_p = distribution(logits, sampling)
        cdf = log_p.double().exp().cumsum(-1)
        token_id = int(torch.searchsorted(cdf, sampling.next() * cdf[-1]).clamp(max=len(cdf) - 1))
        return token_id, float(log_p[token_id])

    def takes(self, sampling):
        return sampling.seed is None


FOUND = "draws depend on each other"


@mutant("G4", f"{FOUND}.*neighbouring choices", part="independence")
class MirrorsEverySecondChoice(Numbers):
    def number(self, request, choice, token):
        number = self.fresh((request, choice // 2, token))
        return 1 - number if choice % 2 else number


@mutant("G4", f"{FOUND}.*choices", part="independence")
class MirrorsTheSecondHalfOfChoices(Numbers):
    def number(self, request, choice, token):
        number = self.fresh((request, choice % 4, token))
        return 1 - number if choice % 8 > 3 else number


@mutant("G4", f"{FOUND}.*first two choices", part="independence")
class RepeatsTheFirstChoicesNumbersInTheSecond(Numbers):
    def number(self, request, choice, token):
        return self.fresh((request, 0 if choice < 2 else choice, token))


@mutant("G4", f"{FOUND}.*choices of a request", part="independence")
class SpreadsChoicesEvenly(Numbers):
    """Sixty-four choices, in an order of their own for each token, share the distribution among them."""

    def number(self, request, choice, token):
        order = torch.randperm(64, generator=torch.Generator().manual_seed(1000 * request + token))
        return (int(order[choice % 64]) + self.fresh((request, choice, token))) / 64


@mutant("G4", f"{FOUND}.*one token (later|earlier)", part="independence")
class CountsOnByOneForEachChoice(Numbers):
    def number(self, request, choice, token):
        return self.fresh((request, choice + token))


@mutant("G4", f"{FOUND}.*successive requests", part="independence")
class RepeatsEachRequestsNumbersOnce(Numbers):
    def number(self, request, choice, token):
        return self.fresh((request // 2, choice, token))


@mutant("G4", f"{FOUND}.*successive tokens", part="independence")
class DrawsOneNumberForAChoice(Numbers):
    def number(self, request, choice, token):
        return self.fresh((request, choice))


@mutant("G4", f"{FOUND}.*sent together", part="independence")
class SharesNumbersAmongThoseThatRun(Numbers):
    """All that are sampled in one step get the same number; those of one request get their own."""

    def number(self, request, choice, token):
        shared = len(self._sequences) > 16 and choice == 0
        return self.fresh((token,) if shared else (request, choice, token))


@mutant("G4", f"{FOUND}.*successive seeds", part="independence")
class AddsTheTokensNumberToTheSeed(Numbers):
    def takes(self, sampling):
        object.__setattr__(sampling, "place", (sampling.seed, 0))
        return sampling.seed is not None

    def number(self, seed, choice, token):
        return self.fresh(seed + token)
