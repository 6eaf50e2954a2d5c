"""Broken servers that a mutation tool has drawn from the adapters' own code."""

from dataclasses import replace

from inference_adapters.membership import Membership
from inference_adapters.scripted import ScriptedEngine
from tests.conformance.broken_servers.mutants import mutant


@mutant("G4", "standard errors|log-probability", part="alone")
class MultipliesByTheTemperature(ScriptedEngine):
    def sample(self, logits, sampling, generator):
        heat = sampling.temperature and 1 / sampling.temperature
        return super().sample(logits, replace(sampling, temperature=heat), generator)


@mutant("G6", "^504 .*rendezvous_timeout", part="requests")
def joins_an_epoch_that_is_over(options):
    right = Membership._check_join

    def check(self, request):
        epoch = self._epoch
        self._epoch = None
        try:
            right(self, request)
        finally:
            self._epoch = epoch

    Membership._check_join = check


@mutant("G6", "an update while a group is being joined", part="joins")
def names_another_reason_while_a_group_forms(options):
    Membership.check_no_join = lambda self, run: None
