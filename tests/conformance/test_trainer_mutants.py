"""Every part of every guarantee has a broken trainer."""

from contracts.conformance.trainer.kit import CHECKS
from tests.conformance.broken_trainers import BROKEN


def test_every_part_of_a_guarantee_has_a_trainer_that_breaks_it():
    tried = {(mutant.breaks, mutant.part) for mutant in BROKEN.values()}
    assert tried == {(guarantee.code, part) for guarantee, parts in CHECKS.items() for part in parts}
