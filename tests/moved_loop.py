"""An event loop whose clock tests move, so that a limit of time passes at once, and none passes by itself."""

import asyncio
import functools
from collections.abc import Awaitable, Callable


class MovedLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is the machine's, and as many seconds later as a test says."""

    ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s


def on_moved_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Returns a test that runs the coroutine `test` on such a loop."""

    @functools.wraps(test)
    def run(*arguments: object, **fixtures: object) -> None:
        with asyncio.Runner(loop_factory=MovedLoop) as runner:
            runner.run(test(*arguments, **fixtures))

    return run


def let_pass(seconds: float) -> None:
    """Moves the clock of the running loop."""
    asyncio.get_running_loop().ahead_s += seconds
