"""The guarantees of inference servers in four parts: a whole contract takes a real engine ten minutes."""

import pytest

from contracts.conformance.inference.kit import CODES

QUARTERS = [CODES[part::4] for part in range(4)]
for_each_quarter = pytest.mark.parametrize("codes", QUARTERS, ids=" ".join)
