"""The weight transport `ipc`, named by `conf/weights/ipc.yaml`."""

from typing import TYPE_CHECKING

from pipelinerl.errors import PlanError
from pipelinerl.weight_transport import WeightTransport

if TYPE_CHECKING:
    from pipelinerl.training.publishing.base import PublisherContext, WeightPublisher

BY_BROADCAST = ("inference_adapters.vllm", "inference_adapters.sglang")  # do not offer `ipc`


class Ipc(WeightTransport):
    """A weight group whose rank 0 lends its buffers, to servers on the same GPU or machine."""

    def check(self) -> None:
        from pipelinerl.launcher.executors.base import executor_class  # only the launcher calls this

        world = self.config.world
        if world.gpus and not (world.share_gpus and world.servers == 1):
            raise PlanError(
                "weights=ipc is for one server on the GPU of trainer rank 0; set world.share_gpus=true and "
                "world.servers=1, or weights=group"
            )
        engines = {
            engine.module for engine in (self.config.inference, *self.config.inference.others.values())
        }
        if others := sorted(engines.intersection(BY_BROADCAST)):
            raise PlanError(
                f"weights=ipc needs servers that copy what is lent, and {others[0]} does not; set "
                "weights=shared"
            )
        if executor_class(self.config).spans_nodes:
            raise PlanError("weights=ipc with executor=ray: servers may be elsewhere; set weights=group")

    def publisher(self, context: "PublisherContext") -> "WeightPublisher":
        from pipelinerl.training.publishing.group import GroupPublisher

        return GroupPublisher(self.config, context, backend="ipc")
