"""The size of a bucket follows from the size of the weights."""

import pytest

from pipelinerl.training.bucket_size import LARGEST, SMALLEST, usual_bucket_bytes


@pytest.mark.parametrize(
    ("total_bytes", "bucket_bytes"),
    [(3_600_000, SMALLEST), (2**30, SMALLEST), (2**33, 2**25), (2**40, LARGEST)],
    ids=["one bucket", "small", "in between", "large"],
)
def test_larger_weights_have_larger_buckets(total_bytes, bucket_bytes):
    assert usual_bucket_bytes(total_bytes, "gloo") == bucket_bytes
    assert usual_bucket_bytes(total_bytes, "nccl") == LARGEST
