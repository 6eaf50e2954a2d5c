"""Names the servers that the selected tests ask for, so that one test alone does not start all of them."""

import pytest


def selected_names(request: pytest.FixtureRequest) -> set[str]:
    """Returns the values of `name` in the selected tests that use the requested fixture."""
    tests = [item for item in request.session.items if request.fixturename in item.fixturenames]
    return {test.callspec.params["name"] for test in tests if test.path == request.path}
