"""Translates saved configurations of earlier versions, with other keys and other paths of classes."""

from typing import Any

from contracts.support.moved import new_path

EXECUTORS = {
    "local": {"_target_": "pipelinerl.launcher.executors.local.LocalExecutor"},
    "ray": {"_target_": "extensions.cluster.on_ray.executor.RayExecutor"},
}
STREAMS = {
    "files": {"_target_": "pipelinerl.streams.of_run.Files"},
    "redis": {"_target_": "extensions.redis_streams.backend.Redis"},
}
TRACKING = "extensions.viewer.observers.Tracking"
VIEWER = "extensions.viewer.observers.Viewer"
DEMO = "extensions.demo.registry.Demo"


def with_moved_keys(saved: dict[str, Any]) -> dict[str, Any]:
    """Returns a saved configuration of an earlier version with today's keys and values."""
    saved = _with_new_paths(_with_components(saved))
    if "check_parts" not in saved and "domain" in saved:  # when it was saved, null meant the preset's value
        saved = saved | {"domain": _with_presets(saved["domain"])}
    saved = saved | {"weights": _with_target(saved.get("weights") or {})}
    saved = saved | {"model": _with_maker(saved.get("model") or {})}
    world = dict(saved.get("world") or {})
    if "server_restarts" not in world:
        return saved
    restarts = {"servers": world.pop("server_restarts")} | (saved.get("restarts") or {})
    return saved | {"world": world, "restarts": restarts}


def _with_maker(model: Any) -> Any:
    """Returns the model section with the key `demo` replaced by `made_by`, and the demo's files moved."""
    if not isinstance(model, dict) or "demo" not in model:
        return model
    path = str(model.get("path") or "").replace("/pipelinerl/demo_model/", "/extensions/demo/")
    kept = {key: value for key, value in model.items() if key != "demo"}
    return kept | {"path": path or None, "made_by": {"_target_": DEMO, "name": model["demo"]}}


def _with_target(weights: Any) -> Any:
    """Returns the weights section with the key `transport` replaced by a class, and only its options."""
    if not isinstance(weights, dict) or "transport" not in weights:
        return weights
    transport = str(weights["transport"])
    of_stores = {
        "group": (),
        "shared": ("directory",),
        "relay": ("directory", "deltas", "relays", "origin_port", "poll_s", "keep", "max_behind"),
    }
    foreign = {*of_stores["relay"]} - {*of_stores.get(transport, ())}
    options = {key: value for key, value in weights.items() if key not in {*foreign, "transport"}}
    name = "pipelinerl.weight_transport.Group"
    if transport != "group":
        name = f"extensions.stored_weights.transport.{transport.capitalize()}"
    return {"_target_": name} | options


def _with_components(saved: dict[str, Any]) -> dict[str, Any]:
    """Returns a saved configuration with executor, streams and observers as components."""
    for section, targets in (("executor", EXECUTORS), ("streams", STREAMS)):
        given = saved.get(section)
        if isinstance(given, dict) and "backend" in given:
            options = {key: value for key, value in given.items() if key != "backend"}
            saved = saved | {section: targets.get(str(given["backend"]), {}) | options}
    trackers = [*(saved.get("trackers") or []), *(["tensorboard"] if saved.get("tensorboard") else [])]
    observers = {name: {"_target_": TRACKING, "tracker": name} for name in trackers}
    if saved.get("view"):
        observers["viewer"] = {"_target_": VIEWER}
    kept = {key: value for key, value in saved.items() if key not in ("view", "trackers", "tensorboard")}
    return {"observers": observers} | kept


def _with_new_paths(part: Any) -> Any:
    """Returns a part of a saved configuration with today's paths of moved classes."""
    if isinstance(part, list):
        return [_with_new_paths(item) for item in part]
    if not isinstance(part, dict):
        return part
    values = {key: _with_new_paths(value) for key, value in part.items()}
    named = [key for key in ("_target_", "made_by") if isinstance(values.get(key), str)]
    return values | {key: new_path(values[key]) or values[key] for key in named}


def _with_presets(part: Any) -> Any:
    """Returns the options of a domain, and of nested domains, with "preset" in place of null."""
    if not isinstance(part, dict):
        return part
    values = {key: _with_presets(value) for key, value in part.items()}
    of_preset = ("prompt_pattern", "system_prompt", "difficulty_keys") if part.get("presets") else ()
    return values | {key: "preset" for key in of_preset if key in part and part[key] is None}
