"""Training backends behind the contract. Each needs only `contracts` and its own engine."""
