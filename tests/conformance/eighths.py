"""The guarantees of inference servers in eight parts: a whole contract takes a real engine ten minutes."""

import pytest

from contracts.conformance.inference.kit import CODES
from tests.rotation import PARTS

EIGHTHS = [CODES[part::PARTS] for part in range(PARTS)]
for_each_eighth = pytest.mark.parametrize("codes", EIGHTHS, ids=" ".join)
