"""Training backends behind the contract; each needs only `contracts` and its own engine."""
