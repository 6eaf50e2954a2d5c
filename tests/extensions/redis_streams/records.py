"""What the tests of streams on Redis break: connections, and what a server holds."""

import redis


def kill_connections(admin: redis.Redis, part_of_name: str) -> int:
    found = [client["id"] for client in admin.client_list() if part_of_name in client["name"]]
    return sum(admin.client_kill_filter(_id=number) for number in found)


def key(tmp_path, kind: str, name: str = "events") -> str:
    return f"pipelinerl:{tmp_path.name}:{kind}:{name}"
