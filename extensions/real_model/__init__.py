"""A real language model, SmolLM2-135M-Instruct, and two tasks that it learns on a CPU.

Plugs into a run as the maker of its model (`model=smollm2`) and as its domain (`domain=plain_sums`). Must not
know how a run trains.
"""
