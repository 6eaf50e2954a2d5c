"""New paths of modules that have moved. An import of an old path fails with an error that names the new one.

Used by the `__init__` of the contracts, by the launcher, and for runs that were saved with old paths.
Imports only `sys`, because every process of a run imports it.
"""

import sys

MOVED = {
    "contracts.conformance.inference.stores": "extensions.stored_weights.conformance",
    "contracts.store": "extensions.stored_weights.store",
    "extensions.math.word_problems": "extensions.reasoning_gym.word_problems",
    "inference_adapters.channels": "extensions.stored_weights.server",
    "inference_adapters.places": "inference_adapters.completion_slots",
    "inference_adapters.weight_sources": "extensions.stored_weights.server.weight_sources",
    "pipelinerl.clients.served_versions": "extensions.stored_weights.actor.served_versions",
    "pipelinerl.clients.version_watch": "extensions.stored_weights.actor.version_watch",
    "pipelinerl.demo_model": "extensions.demo",
    "pipelinerl.domains.arithmetic": "extensions.demo.domains.arithmetic",
    "pipelinerl.domains.calculator": "extensions.demo.domains.calculator",
    "pipelinerl.domains.guessing": "extensions.demo.domains.guessing",
    "pipelinerl.domains.math": "extensions.math",
    "pipelinerl.domains.reasoning_gym": "extensions.reasoning_gym.domain",
    "pipelinerl.domains.thinking_sums": "extensions.reasoning_gym.thinking_sums",
    "pipelinerl.judging.verifiers.expressions": "extensions.reasoning_gym.expressions",
    "pipelinerl.judging.verifiers.math": "extensions.math.verifier",
    "pipelinerl.judging.verifiers.reasoning_gym": "extensions.reasoning_gym.verifier",
    "pipelinerl.launcher.executors.on_ray": "extensions.cluster.on_ray",
    "pipelinerl.launcher.supervising.own_redis": "extensions.redis_streams.own_server",
    "pipelinerl.replay": "extensions.tools.replay",
    "pipelinerl.simulate": "extensions.simulator",
    "pipelinerl.streams.__main__": "extensions.viewer.records",
    "pipelinerl.streams.group_history": "extensions.viewer.records.group_history",
    "pipelinerl.streams.group_story": "extensions.viewer.records.group_story",
    "pipelinerl.streams.show": "extensions.viewer.records.show",
    "pipelinerl.tools": "extensions.tools",
    "pipelinerl.streams.redis": "extensions.redis_streams.streams",
    "pipelinerl.streams.redis_connection": "extensions.redis_streams.connection",
    "pipelinerl.streams.redis_server": "extensions.redis_streams.server",
    "pipelinerl.track": "extensions.viewer.track",
    "pipelinerl.view": "extensions.viewer",
    "trainer_adapters.diloco": "extensions.islands.diloco",
    "trainer_adapters.islands": "extensions.islands",
}


def new_path(path: str) -> str | None:
    """Returns the new path of a module or of an attribute in it. Returns None if it has not moved."""
    for old, new in MOVED.items():
        if path == old or path.startswith(f"{old}."):
            return new + path.removeprefix(old)
    return None


class _MovedModuleFinder:
    """The last finder of `sys.meta_path`. It finds no module, and raises for one that has moved."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if new := new_path(name):
            # With this `name`, both `python -m` and `from package import module` show the message.
            raise ModuleNotFoundError(f"{name} is {new} now", name=name.partition(".")[0])


def install_finder() -> None:
    """Makes an import of a moved module raise ModuleNotFoundError with its new path."""
    sys.meta_path.append(_MovedModuleFinder)
