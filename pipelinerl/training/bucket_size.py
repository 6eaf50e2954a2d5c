"""The bucket size of a weight update if `weights.bucket_bytes` does not set it."""

SMALLEST = 2**23  # bytes; a broadcast takes as long as packing a few MB, so smaller tensors are packed
LARGEST = 2**28
BUCKETS = 256  # number of buckets in one update, besides tensors that are larger than a bucket


def usual_bucket_bytes(total_bytes: int, backend: str) -> int:
    """Returns the bucket size for an update of `total_bytes`.

    A tensor that is larger than a bucket is sent without a copy. Smaller ones are first packed into buckets.
    With NCCL, buckets have the largest size, because they are packed on a GPU and broadcasts are polled.
    """
    if backend == "nccl":
        return LARGEST
    return min(max(total_bytes // BUCKETS, SMALLEST), LARGEST)
