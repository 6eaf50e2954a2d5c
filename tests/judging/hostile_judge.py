"""A judge for the tests of the pool: it executes the text as Python, as some scorers do."""

from pipelinerl.judging.wire import Judgement

counted = 0  # what a text leaves for the next one, were there a next one


class ExecutingJudge:
    """Judges a text that it executes; the text may set `reward`."""

    def __call__(self, verifier: str, task: bytes, text: str) -> Judgement:
        names = {"reward": 0.0, "task": task, "verifier": verifier}
        exec(text, names)
        reward = float(names["reward"])
        return Judgement(reward, reward > 0.5, "right" if reward > 0.5 else "wrong")
