"""The islands' trainer as conf/ makes it."""

import pytest
from hydra.utils import instantiate

from extensions.islands.diloco import DiLoCoTrainer
from pipelinerl.launcher.composing.compose import compose_config
from trainer_adapters.deepspeed import DeepSpeedTrainer
from trainer_adapters.fsdp import FSDPTrainer


@pytest.mark.parametrize(
    ("overrides", "inner"),
    [
        (["trainer=diloco"], FSDPTrainer),
        (["+exp=islands_demo"], FSDPTrainer),
        (["+exp=islands_demo", "trainer@trainer.inner=deepspeed"], DeepSpeedTrainer),
        (["trainer=diloco", "trainer@trainer.inner=deepspeed_zero3"], DeepSpeedTrainer),
    ],
)
def test_the_inner_trainer_is_the_chosen_one(overrides, inner):
    trainer = instantiate(compose_config(overrides).trainer.model_dump(by_alias=True))
    assert isinstance(trainer, DiLoCoTrainer)
    assert type(trainer._inner) is inner


def test_options_of_the_inner_trainer_are_given_to_it():
    config = compose_config(["trainer=diloco", "trainer.inner.compile_layers=true", "trainer.every=7"])
    trainer = instantiate(config.trainer.model_dump(by_alias=True))
    assert trainer.period == 7
    assert trainer._inner._compile_layers
