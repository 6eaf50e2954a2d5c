"""Which sources a server accepts."""

import pytest

from contracts.errors import ContractError, ErrorCode
from contracts.support.locations import Location
from extensions.stored_weights.server.weight_sources import SourceList
from inference_adapters.channel import LOCAL, Caller

REMOTE = Caller("10.0.0.7", "10.0.0.1")
LISTED = [
    Location.of(url)
    for url in ("http://a.example/weights", "https://[2001:db8::1]:8443", "file:///dev/shm/x")
]


def accepts(sources: SourceList, url: str, caller: Caller = LOCAL, kind: str | None = None) -> bool:
    try:
        sources.check(url, kind or ("shared" if url.startswith("file:") else "relay"), caller)
    except ContractError as error:
        assert error.code is ErrorCode.SOURCE_REFUSED and error.param == "sources"
        return False
    return True


@pytest.mark.parametrize("url", [
     "http://127.0.0.1:9000/", "http://127.3.2.1/below/", "http://localhost:1/", "HTTP://LOCALHOST/",
     "https://[::1]:9/", "http://[::ffff:127.0.0.1]/", "file:///dev/shm/run/",
])  # fmt: skip
def test_loopback_is_accepted_by_default(url):
    assert accepts(SourceList(), url)


@pytest.mark.parametrize("url", [
     "http://192.0.2.1/", "http://localhost.evil/", "http://localhost@evil/", "http://127.0.0.1@evil/",
     "http://127.0.0.1:80@evil/", "http://evil#@127.0.0.1/", "http://evil?@127.0.0.1/",
     "http://127.0.0.1\\@evil/", "http://127.1/", "http://2130706433/", "http://0x7f.0.0.1/",
     "http://localhost./", "http://%6cocalhost/", "http://127.0.0.1/%2e%2e/", "http://127.0.0.1/../",
     "http://127.0.0.1/a/./b", "http://127.0.0.1/a//b", "http://127.0.0.1//a", "http://127.0.0.1/a//",
     "http://127.0.0.1//", "http://127.0.0.1:/?x", "http://127.0.0.1:99999/", "http://[::1]evil/",
     "http://[::1", "http:///path", "file://127.0.0.1/dev/shm/run/", "file:///dev/shm/../../etc",
     "file:///dev/shm/%2e%2e/etc",
])  # fmt: skip
def test_bypasses_are_refused(url):
    assert not accepts(SourceList(), url)


def test_the_callers_own_host_is_accepted_by_default():
    assert accepts(SourceList(), "http://10.0.0.7:9/", REMOTE)
    assert not accepts(SourceList(), "http://10.0.0.8:9/", REMOTE)
    assert not accepts(SourceList(), "file:///dev/shm/run", REMOTE)
    assert accepts(SourceList(), "file:///dev/shm/run", Caller("10.0.0.1", "10.0.0.1"))


@pytest.mark.parametrize(("url", "accepted"), [
     ("http://a.example/weights", True), ("http://A.EXAMPLE:80/weights/run/", True),
     ("http://a.example/weights-of-others", False), ("http://a.example/", False),
     ("https://a.example/weights", False), ("http://a.example:8080/weights", False),
     ("http://a.example.evil/weights", False), ("http://a.example@evil/weights", False),
     ("http://a.example/weights/../secrets", False), ("http://a.example/weights/%2e%2e/secrets", False),
     ("https://[2001:db8:0::1]:8443/any", True), ("http://127.0.0.1/", False), ("file:///dev/shm/x", True),
     ("file:///dev/shm/x/run", True), ("file:///dev/shm/xy", False),
])  # fmt: skip
def test_a_list_is_compared_by_parts(url, accepted):
    assert accepts(SourceList(LISTED), url) is accepted


def test_the_kind_decides_the_scheme():
    assert not accepts(SourceList(), "http://127.0.0.1/", kind="shared")
    assert not accepts(SourceList(), "file:///dev/shm/run", kind="relay")
