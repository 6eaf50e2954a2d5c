"""A weight transport: each version is one safetensors file in a directory, and the servers read it there."""

from pathlib import Path

from pipelinerl.config import Section
from pipelinerl.weight_transport import WeightTransport


class Copied(WeightTransport):
    class Options(Section):
        directory: Path

    def server_options(self, launch, server):
        directory = self.options.directory.absolute()
        return ["--weight-channels", "copied_channels.CopiedChannels", f"--copies={directory}"]

    def needed_capabilities(self):
        return {"shared": "weights=copied needs servers that load stored weights"}

    def publisher(self, context):
        from copied_publisher import CopiedPublisher  # imports torch, which the launcher does without

        return CopiedPublisher(self.config, context, self.options.directory.absolute())
