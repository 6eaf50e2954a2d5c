"""What does not go together with turns, or with lent weights, is refused before the start."""

import pytest

from extensions.colocated.schedule import Colocated
from pipelinerl.errors import PlanError
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.weight_transport import transport_of

TURNS = {
    "weights=group": "Group does not put servers to sleep; set weights=shared",
    "weights=relay": "Relay does not put servers to sleep; set weights=shared",
    "inference=vllm": "inference_adapters.vllm does not; set inference=transformers",
    "inference=mixed world.servers=2": "inference_adapters.vllm does not; set inference=transformers",
    "max_lag=null": "set max_lag=1",
    "reference=transformers": "leave reference out",
    "eval.pinned=true world.servers=2": "set eval.pinned=false",
    "world.gpus=2": "set world.share_gpus=true",
    "schedule.train_timeout_s=0": "schedule.train_timeout_s: Input should be greater than 0",
    "trainer=diloco": "set trainer=fsdp or trainer=deepspeed",
}
LENT = {
    "inference=vllm": "inference_adapters.vllm does not; set weights=shared",
    "world.gpus=2": "set world.share_gpus=true and world.servers=1",
}


@pytest.mark.parametrize("settings", TURNS)
def test_turns_are_refused(settings):
    with pytest.raises(PlanError) as refused:
        Colocated(compose_config(["schedule=colocated", "weights=shared", *settings.split()])).check()
    assert TURNS[settings] in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("settings", LENT)
def test_lent_weights_are_refused(settings):
    with pytest.raises(PlanError) as refused:
        transport_of(compose_config(["weights=ipc", *settings.split()])).check()
    assert LENT[settings] in str(refused.value)
