"""Inference servers behind the contract. Each adapter needs only `contracts` and its own engine."""

import contracts  # noqa: F401  imports of modules that have moved are answered
