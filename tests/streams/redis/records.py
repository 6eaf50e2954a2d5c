"""The records that the tests of streams on Redis write, read back and corrupt."""

import redis

from contracts.records import Started


def event(number: int) -> Started:
    return Started(at=1.0, group_id=number, rollouts=8, draw=number, problem=0)


def numbers(entries) -> list[int]:
    return [entry.record.group_id for entry in entries]


def there(streams, name="events", offset=0) -> list[int]:
    return numbers(streams.reader(name).read(offset, timeout_s=0))


def kill_connections(admin: redis.Redis, part_of_name: str) -> int:
    found = [client["id"] for client in admin.client_list() if part_of_name in client["name"]]
    return sum(admin.client_kill_filter(_id=number) for number in found)


def key(tmp_path, kind: str, name: str = "events") -> str:
    return f"pipelinerl:{tmp_path.name}:{kind}:{name}"
