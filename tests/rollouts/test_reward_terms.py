import numpy as np

from pipelinerl.advantages import Return
from pipelinerl.batching.credit import per_turn
from pipelinerl.rollouts.reward_terms import with_terms
from tests.builders import completion, group, rollout


class Longest:
    """Names the member with most tokens, and counts what it was shown."""

    name = "longest"

    def __call__(self, rollouts, version):
        lengths = np.array([r.sampled_tokens for r in rollouts])
        return np.where(lengths == lengths.max(), -float(version), 0.0)


def test_terms_are_added_and_recorded_by_name():
    short, long = completion([1], [2]), completion([1], [2, 3])
    members = [rollout(0, 0, 1.0, completions=[short]), rollout(0, 1, 1.0, completions=[long])]
    first, second = with_terms(members, [Longest()], version=2)
    assert first.reward == 1.0 and first.reward_components == {"task": 1.0, "longest": 0.0}
    assert second.reward == -1.0 and second.reward_components == {"task": 1.0, "longest": -2.0}


def test_components_of_the_domain_are_kept():
    members = group(0, [0.75, 0.75], reward_components={"correct": 0.5, "format": 0.25})
    for member in with_terms(members, [Longest()], version=1):
        assert member.reward_components == {"correct": 0.5, "format": 0.25, "longest": -1.0}
        assert member.reward == sum(member.reward_components.values())


def test_a_member_that_failed_is_not_shown_to_the_terms():
    members = [rollout(0, 0, completions=[], status="failed:timeout"), rollout(0, 1, 1.0)]
    failed, good = with_terms(members, [Longest()], version=1)
    assert failed is members[0] and good.reward == 0.0
    assert with_terms(members[:1], [Longest()], version=1) == members[:1]
    assert with_terms(members, [], version=1) is members


def test_what_a_term_adds_is_earned_at_the_end():
    two_turns = rollout(0, 0, 1.0, completions=[completion([1], [2])] * 2, turn_rewards=[1.0, 0.0])
    (shaped,) = with_terms([two_turns], [Longest()], version=1)
    assert per_turn([shaped], Return())[0].tolist() == [0.0, -1.0]
