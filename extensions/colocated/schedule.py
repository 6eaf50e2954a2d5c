"""The schedule `colocated`, named by `conf/schedule/colocated.yaml`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import Field

from contracts.trainer import TrainerWorker
from pipelinerl.components import instantiate
from pipelinerl.config import Seconds, Section
from pipelinerl.errors import PlanError
from pipelinerl.turns import Turns
from pipelinerl.weight_transport import transport_of

if TYPE_CHECKING:  # imports torch, which the launcher does not need
    from extensions.colocated.phases import Phases
    from pipelinerl.training.turn_taking import TurnContext

AWAKE_ALWAYS = ("inference_adapters.vllm", "inference_adapters.sglang")  # do not declare `sleep`


class Colocated(Turns):
    """Servers sleep while the trainer trains, and the trainer is off its device while servers generate.

    With `max_lag=0`, a training phase begins when no request is in flight. Otherwise requests wait in the
    servers, and go on under the new weights.
    """

    class Options(Section):
        """The keys of `schedule` with `schedule=colocated`."""

        sleep_timeout_s: Seconds = Field(60, description="Longest time in which a server falls asleep.")
        train_timeout_s: Seconds = Field(3600, description="Longest training phase.")

    options: Options

    def check(self) -> None:
        for why in self._faults():
            raise PlanError(f"schedule=colocated {why}")

    def _faults(self) -> Iterator[str]:
        config = self.config
        trainer: TrainerWorker = instantiate(config.trainer)
        if not trainer.offloads:
            yield (
                f"needs a trainer that leaves its device meanwhile, and {config.trainer.target} does not "
                "(TrainerWorker.offloads); set trainer=fsdp or trainer=deepspeed"
            )
        if not transport_of(config).puts_to_sleep:
            yield (
                "needs weights that are stored while servers sleep, and loaded when the trainer asks for it; "
                f"{config.weights.target} does not put servers to sleep; set weights=shared"
            )
        engines = {engine.module for engine in (config.inference, *config.inference.others.values())}
        if awake := sorted(engines.intersection(AWAKE_ALWAYS)):
            yield f"needs servers that sleep, and {awake[0]} does not; set inference=transformers"
        if config.max_lag is None:
            yield "with max_lag=null would let requests wait through any number of steps; set max_lag=1"
        if config.reference:
            yield "leaves no memory for a reference server, which never sleeps; leave reference out"
        if config.eval.pinned:
            yield "wakes servers by new weights, and eval.pinned=true keeps the old; set eval.pinned=false"
        if config.world.gpus and not config.world.share_gpus:
            yield "is for servers and ranks on the same GPUs; set world.share_gpus=true"

    def plan_notes(self) -> Iterator[str]:
        held = "no request is in flight then" if self.config.max_lag == 0 else "requests wait meanwhile"
        yield f"phases: servers sleep while each step is trained; {held} (schedule=colocated)"

    def needed_capabilities(self) -> dict[str, str]:
        return {"sleep": "schedule=colocated needs servers that sleep"}

    @property
    def hold_timeout_s(self) -> float:
        options = self.options
        return options.sleep_timeout_s + options.train_timeout_s + self.config.weights.live_timeout_s

    def of_trainer(self, context: "TurnContext") -> "Phases":
        from extensions.colocated.phases import Phases

        return Phases(context, self.options.sleep_timeout_s)
