"""The tasks of both splits, as JSON."""

import json
from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.utils.compile import resolve_runtime_config
from verifiers.v1.utils.loaders import load_taskset, taskset_config_type
from verifiers_worker.config import checked


def taskset_of(config: vf.EnvConfig, given: dict[str, Any], split: str) -> vf.Taskset:
    """Returns the tasks of a split: the environment's taskset with changes, of which some are selected."""
    kind = taskset_config_type(config.taskset.id)
    fields = merged(config.taskset.model_dump(), given[split]["taskset"])
    where = f"domain.{split}"
    taskset = load_taskset(
        checked(f"{where}.taskset", lambda: kind.model_validate(fields), kind.model_fields)
    )
    select = given[split]["select"]
    known = vf.SelectConfig.model_fields
    return taskset.select(checked(f"{where}.select", lambda: vf.SelectConfig.model_validate(select), known))


def merged(fields: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields with others in their place, at each level."""
    found = dict(fields)
    for name, value in others.items():
        before = found.get(name)
        found[name] = merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return found


def listed(config: vf.EnvConfig, seat: str, given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the tasks. The `split` of a training task with the content of a held-out one is null."""
    held_out = set()
    for split in ("heldout", "train"):
        taskset = taskset_of(config, given, split)
        if not taskset.bounded:
            raise ValueError(f"its tasks do not end: set +domain.{split}.select.limit")
        for task in taskset:
            resolve_runtime_config(agent_config_fields(config)[seat].runtime, task)
            data = _data_of(task, type(taskset).task_type())
            content = json.dumps({**data, "idx": None}, sort_keys=True)
            if split == "heldout":
                held_out.add(content)
            is_leaked = split == "train" and content in held_out
            yield {"split": None if is_leaked else split, "data": data, "messages": _opening_of(task.data)}


def _data_of(task: vf.Task, kind: type[vf.Task]) -> dict[str, Any]:
    """Returns the data of a task as JSON. Raises ValueError if the task cannot be made of it again."""
    for found, said in ((type(task), kind), (type(task.data), kind.data_type())):
        if found is not said:
            raise ValueError(f"a task has the class {found.__name__}, and the taskset says {said.__name__}")
    data = task.data.model_dump(mode="json", by_alias=True)
    again = kind.data_type().model_validate(json.loads(json.dumps(data)))
    if again != task.data:
        lost = [name for name in type(again).model_fields if getattr(again, name) != getattr(task.data, name)]
        raise ValueError(f"{type(again).__name__} does not survive JSON: {', '.join(lost)} would be another")
    return data


def _opening_of(data: vf.TaskData) -> list[dict[str, str]]:
    """Returns the messages that open a task, as far as its data says."""
    prompt = data.prompt if isinstance(data.prompt, list) else [vf.UserMessage(content=data.prompt or "")]
    messages = [{"role": message.role, "content": _text_of(message.content)} for message in prompt]
    return [{"role": "system", "content": data.system_prompt}, *messages] if data.system_prompt else messages


def _text_of(content: Any) -> str:
    parts = content or []
    return parts if isinstance(parts, str) else "".join(getattr(part, "text", "") for part in parts)
