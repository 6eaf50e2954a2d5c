"""Broken servers. G6: clean refusal."""

import json

import torch

from inference_adapters import body_limits, manifest_check, update_record, weight_updates
from inference_adapters.bodies import ChatBody, TextBody
from inference_adapters.membership import Membership
from inference_adapters.scripted import ScriptedEngine
from tests.conformance.broken_servers.mutants import mutant


@mutant("G6", "^202", part="requests")
def accepts_an_older_version(options):
    right = weight_updates.WeightUpdates._check_update

    def check(self, request):
        self.ledger._any_version = True
        right(self, request)

    weight_updates.WeightUpdates._check_update = check


@mutant("G6", "^202", part="requests")
class AcceptsAWrongShapeAndPads(ScriptedEngine):
    async def start(self, version):
        await super().start(version)
        right = manifest_check._check_parameter

        def check(parameter, shapes, tied, dtypes):
            shape = shapes.get(parameter.name, ())
            right(parameter.model_copy(update={"shape": shape}), shapes, tied, dtypes)

        manifest_check._check_parameter = check

    def apply_weights(self, tensors, tied, version, kv_cache):
        padded = {name: torch.zeros_like(weight) for name, weight in self._weights.items()}
        for name, tensor in tensors.items():
            padded[name].view(-1)[: tensor.numel()] = tensor.reshape(-1)[: padded[name].numel()]
        super().apply_weights(padded, tied, version, kv_cache)


@mutant("G6", "^202", part="requests")
def ignores_an_unknown_weight(options):
    right = manifest_check._check_parameter

    def check(parameter, shapes, tied, dtypes):
        if parameter.name in shapes:
            right(parameter, shapes, tied, dtypes)

    manifest_check._check_parameter = check


@mutant("G6", "^200", part="values")
def ignores_an_unknown_parameter(options):
    for model in (ChatBody, TextBody):
        model.model_config["extra"] = "ignore"
        model.model_rebuild(force=True)


@mutant("G6", "update_in_progress", part="receiving")
def refuses_a_retry(options):
    update_record.fingerprint = lambda request: object()


@mutant("G6", "stale_epoch", part="joins")
def refuses_a_retried_join(options):
    right = Membership.join

    async def join(self, request):
        self._joined = None
        return await right(self, request)

    Membership.join = join


@mutant("G6", "no answer to POST /v1/completions", part="retries", hangs=True)
class StaysPausedWhenCalledOff(ScriptedEngine):
    async def receive_weights(self, request, progress):
        await self._set_paused(True)
        await super().receive_weights(request, progress)


@mutant("G6", "^500 .* to no JSON", part="http")
def fails_on_a_malformed_body(options):
    def check(scope, body):
        if body:
            json.loads(body)

    body_limits.check_json = check
