"""The schema's defaults as the lowest layer of the configuration, below every file of `conf/`.

Hydra refuses a key that no file has. This layer gives it every key of the schema that has a default. So a
default is written in `pipelinerl/config.py` alone, and a file holds only what departs from it.
"""

from typing import Any

from hydra.core.config_store import ConfigStore
from pydantic import BaseModel

from pipelinerl.config import (
    Component,
    EngineConfig,
    FileStreamsConfig,
    RedisStreamsConfig,
    ReferenceConfig,
    RunConfig,
    WeightsConfig,
)

GROUPS = ("streams",)  # a choice of conf/streams/ brings its own defaults


def register_defaults() -> None:
    """Makes the defaults known to Hydra, under the names that `conf/` begins with."""
    store = ConfigStore.instance()
    store.store("schema", defaults_of(RunConfig))
    store.store("schema", defaults_of(EngineConfig), group="inference")
    store.store("schema", defaults_of(ReferenceConfig), group="reference")
    store.store("schema", defaults_of(WeightsConfig), group="weights")
    store.store("schema_files", defaults_of(FileStreamsConfig), group="streams")
    store.store("schema_redis", defaults_of(RedisStreamsConfig), group="streams")


def defaults_of(schema: type[BaseModel]) -> dict[str, Any]:
    """Returns the keys of a schema that have a default, with the defaults of its sections."""
    defaults = {}
    for name, field in schema.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            if not issubclass(kind, Component):
                defaults[name] = defaults_of(kind)
        elif not field.is_required() and name not in GROUPS:
            default = field.get_default(call_default_factory=True)
            defaults[field.alias or name] = list(default) if isinstance(default, tuple) else default
    return defaults
