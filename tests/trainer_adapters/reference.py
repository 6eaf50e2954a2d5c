"""How closely tensors must agree with those of the reference, which is the kit's."""

import torch

Tensors = dict[str, torch.Tensor]


def assert_close(actual: Tensors, expected: Tensors, tolerance: float = 1e-5) -> None:
    """Compares norms, tensor by tensor."""
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        error = (actual[name] - tensor).norm()
        assert error <= tolerance * tensor.norm(), f"{name} is off by {error / tensor.norm():.1e}"
