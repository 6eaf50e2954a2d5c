"""A domain whose training attempts are answers in a file, for supervised fine-tuning and preferences.

No server samples these answers. Their completions have neither versions nor log-probabilities, so they are
never stale. The inner domain provides the held-out problems, which servers attempt as in any run.
"""

from dataclasses import dataclass
from pathlib import Path

from contracts.records import Completion, unsampled
from pipelinerl.domains.base import Attempt, ChatClient, Domain, Problem, digest_of
from pipelinerl.domains.demonstration_rows import Row, read_rows
from pipelinerl.domains.wrapped import Wrapped

REWARDS = {1: [1.0], 2: [1.0, -1.0]}  # number of answers -> the reward of each; the preferred one is first


@dataclass(frozen=True, kw_only=True)
class Demonstration(Problem):
    row: Row


class Demonstrations(Wrapped):
    """The training problems and answers of a file (`demonstration_rows`).

    An attempt has one completion per answer. The reward of a demonstration is 1. The reward of a preferred
    answer is 1, and that of the rejected one is -1.

    domain: the domain whose held-out problems are attempted.
    path: the file.
    seed: the run's seed; the inner domain already has its own.
    """

    def __init__(self, domain: Domain, path: str | None, seed: int = 0):
        if not path:
            raise ValueError("path is needed: of a .jsonl file of demonstrations (docs/demonstrations.md)")
        super().__init__(domain)
        self.rows = read_rows(Path(str(path)))
        self._source = Path(str(path)).stem
        self.demonstrated = len(self.rows[0].texts or self.rows[0].tokens)

    @property
    def train_size(self) -> int:
        return len(self.rows)

    @property
    def parts(self) -> dict[str, range]:
        return {self._source: range(self.train_size)}

    def longest_problems(self, count: int) -> list[int]:
        return list(range(min(count, self.train_size)))

    def digest(self) -> str:
        return digest_of(map(repr, self.rows))

    def difficulty(self, index: int) -> float:
        raise ValueError("demonstrations have no difficulty labels")

    def train_problem(self, index: int) -> Problem:
        row = self.rows[index]
        problem_id = row.problem_id or f"{self._source}/{index}"
        return Demonstration(problem_id, row.conversation, domain=self._source, row=row)

    async def rollout(self, client: ChatClient, problem: Problem) -> Attempt:
        if not isinstance(problem, Demonstration):
            return await super().rollout(client, problem)
        completions = await _completions(client, problem.row)
        rewards = REWARDS[len(completions)]
        return Attempt(completions, reward=sum(rewards), success=True, turn_rewards=rewards)


async def _completions(client: ChatClient, row: Row) -> list[Completion]:
    if row.prompt_token_ids:
        return [unsampled(row.prompt_token_ids, tokens) for tokens in row.tokens]
    return [await client.completion_of(row.conversation, text) for text in row.texts]
