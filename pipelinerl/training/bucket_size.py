"""How large the buckets of a weight update are where `weights.bucket_bytes` leaves it open."""

SMALLEST = 2**23  # bytes; a broadcast costs as much time as packing a few MB, which smaller tensors save
LARGEST = 2**28
BUCKETS = 256  # of one update, besides tensors that are larger than a bucket


def usual_bucket_bytes(total_bytes: int, backend: str) -> int:
    """Returns the size for an update of so many bytes.

    A tensor that is larger than a bucket is sent from where it lies; smaller ones are first copied together.
    NCCL's buckets are packed on a GPU, and its broadcasts are polled: there they are as large as can be.
    """
    if backend == "nccl":
        return LARGEST
    return min(max(total_bytes // BUCKETS, SMALLEST), LARGEST)
