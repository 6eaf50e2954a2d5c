import pytest

pytest.register_assert_rewrite("tests.launcher.executors.kit", "tests.launcher.executors.refusals")
