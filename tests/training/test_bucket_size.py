"""The size of a bucket follows from the size of the weights."""

import pytest

from pipelinerl.training.bucket_size import LARGEST, SMALLEST, WHOLE, usual_bucket_bytes


@pytest.mark.parametrize(
    ("total_bytes", "bucket_bytes"),
    [(3_600_000, WHOLE), (2**23, SMALLEST), (2**30, 2**22), (2**40, LARGEST)],
    ids=["one bucket", "small", "in between", "large"],
)
def test_larger_weights_have_larger_buckets(total_bytes, bucket_bytes):
    assert usual_bucket_bytes(total_bytes, "gloo") == bucket_bytes
    assert usual_bucket_bytes(total_bytes, "nccl") == LARGEST
