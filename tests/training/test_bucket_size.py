"""The size of a bucket follows from the size of the weights."""

import pytest

from pipelinerl.training.bucket_size import LARGEST, SMALLEST, usual_bucket_bytes


@pytest.mark.parametrize(
    ("total_bytes", "bucket_bytes"),
    [(3_600_000, SMALLEST), (2**30, 2**22), (2**40, LARGEST)],
    ids=["small", "in between", "large"],
)
def test_weights_have_about_as_many_buckets_whatever_their_size(total_bytes, bucket_bytes):
    assert usual_bucket_bytes(total_bytes, "gloo") == bucket_bytes
    assert usual_bucket_bytes(total_bytes, "nccl") == LARGEST
