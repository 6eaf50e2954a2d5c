"""A module of a user's that ends whatever imports it."""

import sys

sys.exit(3)
