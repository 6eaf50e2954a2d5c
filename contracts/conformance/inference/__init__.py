"""Checks guarantees G1 to G16 of the inference contract, one file each, over HTTP, groups and stores."""
