import pytest

from tests.objectives.batches import NORMALISATIONS
from tests.objectives.cases import CASES
from tests.objectives.cuts import assert_same_under_every_cut


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
@pytest.mark.parametrize("name", CASES)
def test_a_step_does_not_depend_on_how_it_is_cut(name, normalisation):
    case, seed = CASES[name], list(CASES).index(name)
    assert_same_under_every_cut(case.objective, NORMALISATIONS[normalisation], seed, case.later_epoch)
