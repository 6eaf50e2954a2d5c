"""Tensors as one vector, in place."""

import pytest
import torch

from trainer_adapters.islands.flat import Flat


def test_elements_are_read_and_written_across_tensors():
    tensors = [torch.arange(6.0).view(2, 3), torch.empty(0), torch.tensor([6.0]), torch.arange(7.0, 12.0)]
    flat = Flat(tensors)
    assert flat.elements == 12 and flat.sizes == [6, 0, 1, 5]
    for begin in range(12):
        for end in range(begin, 13):
            assert flat.read(begin, end).tolist() == list(range(begin, end))
    flat.read(0, 12).fill_(-1)  # a copy
    flat.write(4, torch.tensor([-4.0, -5.0, -6.0, -7.0]))
    assert flat.read(0, 12).tolist() == [0, 1, 2, 3, -4, -5, -6, -7, 8, 9, 10, 11]
    assert tensors[0].tolist() == [[0, 1, 2], [3, -4, -5]]


@pytest.mark.parametrize("tensor", [torch.zeros(2, 3).T, torch.zeros(2, dtype=torch.bfloat16)])
def test_only_contiguous_float32_can_be_written_in_place(tensor):
    with pytest.raises(ValueError, match="contiguous float32"):
        Flat([tensor])
