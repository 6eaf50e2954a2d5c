from pipelinerl.rollouts.retention import KeptRollouts


def test_without_checkpoints_what_is_not_settled_stays():
    kept = KeptRollouts(checkpoint=None)
    assert kept.begin(end=50) == 50
    for group_id, begin in [(3, 50), (2, 60), (4, 70)]:
        kept.written(group_id, begin)
    kept.settled([2, 9])
    assert kept.begin(end=80) == 50
    kept.settled([3])
    assert kept.begin(end=80) == 70
    kept.settled([4])
    assert kept.begin(end=80) == 80


def test_with_checkpoints_what_the_oldest_one_needs_stays():
    kept = KeptRollouts(checkpoint=0)
    kept.written(0, 10)
    assert kept.begin(end=20) == 0
    kept.checkpoint = 5
    kept.settled([0])
    assert kept.begin(end=20) == 5
