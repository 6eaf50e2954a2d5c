"""A domain of three turns, whatever the responses are."""

from pipelinerl.domains.base import Attempt, ChatClient, Domain, Problem


class TalkingDomain(Domain):
    name, train_size, heldout_size = "talking", 100, 8

    def __init__(self, seed: int):
        pass

    def train_problem(self, index: int) -> Problem:
        return Problem(f"train-{index}", [{"role": "user", "content": str(index)}])

    def heldout_problem(self, index: int) -> Problem:
        return Problem(f"heldout-{index}", [{"role": "user", "content": f"h {index}"}])

    async def rollout(self, client: ChatClient, problem: Problem) -> Attempt:
        answers = [await client.chat(problem.messages)]
        for reply in ("go on", "and then?"):
            answers.append(await client.chat([{"role": "user", "content": reply}], after=answers[-1]))
        reward = sum(len(answer.text) for answer in answers)
        return Attempt([answer.completion for answer in answers], reward=float(reward), success=False)
