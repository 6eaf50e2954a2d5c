"""Odd servers: the transport of their responses."""

from tests.conformance.odd_servers.middleware import changing_answers
from tests.conformance.odd_servers.registry import odd


@odd(on="G2/arrivals G6/http G10/routes")
def closes_every_connection():
    changing_answers(header=(b"connection", b"close"))


@odd(on="G2/several G9/lines G9/streams")
def sends_in_small_pieces():
    """Sends pieces that end within an event, or within a character."""
    changing_answers(piece=7)


@odd(host="::1", on="G6/http G10/routes")
def listens_at_ipv6():
    """Has only an IPv6 address."""


@odd(path="/engines/one", on="G1/context G6/http G10/tokens")
def stands_behind_a_path():
    changing_answers(prefix="/engines/one")
