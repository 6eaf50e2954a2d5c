"""Checks guarantees G1 to G11 of the inference contract, one file each, over HTTP and the weight group."""
