"""A judge for the tests of the pool: it executes the text as Python, as some scorers do."""

from pipelinerl.judging.wire import Judgement


class ExecutingJudge:
    """Judges a text that it executes; the text may set `reward`, and the other fields."""

    def __call__(self, verifier: str, task: bytes, text: str) -> Judgement:
        names = {"reward": 0.0, "task": task, "verifier": verifier}
        exec(text, names)
        reward = float(names["reward"])
        outcome = names.get("outcome", "right" if reward > 0.5 else "wrong")
        return Judgement(reward, reward > 0.5, outcome, metrics=names.get("metrics", {}))
