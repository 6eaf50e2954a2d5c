"""Names the servers that the selected tests ask for, so that one test alone does not start all of them."""

import pytest


def selected(request: pytest.FixtureRequest) -> list[str]:
    """Returns the values of `name` in the selected tests of this file that use the requested fixture."""
    tests = [item for item in request.session.items if request.fixturename in item.fixturenames]
    return [test.callspec.params["name"] for test in tests if test.path == request.path]
