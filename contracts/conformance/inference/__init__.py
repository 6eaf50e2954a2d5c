"""Guarantees G1 to G11 of the inference contract, each a file, checked over HTTP and the weight group."""
