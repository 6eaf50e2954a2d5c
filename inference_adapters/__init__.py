"""Inference servers behind the contract. Each adapter needs only `contracts` and its own engine."""
