"""Streams on a real Redis server, and the server of a run."""

import pytest
import redis

from extensions.redis_streams.server import RedisServer
from extensions.redis_streams.streams import RedisStreams


@pytest.fixture
def streams(redis_url, tmp_path) -> RedisStreams:
    return RedisStreams(redis_url, tmp_path.name)


@pytest.fixture
def admin(redis_url) -> redis.Redis:
    """Returns another client of the server, which may do everything."""
    return redis.Redis.from_url(redis_url)


@pytest.fixture
def server(tmp_path) -> RedisServer:
    return RedisServer(tmp_path / "redis")
