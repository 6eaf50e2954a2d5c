"""Broken servers. G10: the token, and the proof of it."""

from inference_adapters import app, control_routes
from tests.conformance.broken_servers.mutants import mutant


def checked_by(allows):
    """Replaces the check of the token: `allows(scope, expected)` additionally accepts a request."""
    right = app.BearerToken.__call__

    async def check(self, scope, receive, send):
        if scope["type"] == "http" and allows(scope, self.expected):
            await self.app(scope, receive, send)
        else:
            await right(self, scope, receive, send)

    app.BearerToken.__call__ = check


def given(scope):
    return dict(scope["headers"]).get(b"authorization", b"")


@mutant("G10", "case: .200", part="tokens")
def compares_without_case(options):
    checked_by(lambda scope, expected: given(scope).lower() == expected.lower())


@mutant("G10", "with a token with one character more", part="routes")
def compares_the_beginning(options):
    checked_by(lambda scope, expected: given(scope).startswith(expected))


@mutant("G10", "in the address", part="tokens")
def takes_the_token_in_the_address(options):
    checked_by(lambda scope, expected: expected.split()[1] in scope["query_string"])


@mutant("G10", "without a scheme|as basic|another scheme", part="tokens")
def takes_the_token_in_any_scheme(options):
    checked_by(lambda scope, expected: given(scope).split()[-1:] == expected.split()[-1:])


@mutant("G10", "/v1/chat/completion with", part="routes")
def leaves_the_alias_open(options):
    checked_by(lambda scope, expected: scope["path"] == "/v1/chat/completion")


@mutant("G10", "with no token: .404|with no token: .405", part="routes")
def says_which_routes_there_are(options):
    routes = {"/contract", "/v1/completions", "/v1/models", "/score", "/v1/chat/completions"}
    checked_by(
        lambda scope, expected: (
            scope["path"] == "/no_such_route" or scope["method"] == "DELETE" and scope["path"] in routes
        )
    )


@mutant("G10", "/health/\\.\\./contract|//contract|/health_generate", part="routes")
def opens_what_begins_like_health(options):
    checked_by(lambda scope, expected: scope["path"].startswith("/health"))


@mutant("G10", "address 127.0.0.99:1", part="proofs")
def proves_the_host_that_it_is_told(options):
    right = app.BodyLimits.__call__

    async def call(self, scope, receive, send):
        host, _, port = dict(scope.get("headers", [])).get(b"host", b"").decode().partition(":")
        if scope["type"] == "http" and host:
            scope["server"] = (host, int(port or 80))
        await right(self, scope, receive, send)

    app.BodyLimits.__call__ = call


@mutant("G10", "challenge=.*200", part="proofs")
def takes_any_challenge(options):
    field = control_routes.Challenge.__metadata__[0]
    field.metadata.clear()
