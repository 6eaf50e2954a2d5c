"""The inference contract, the trainer contract, and the records that cross a process boundary.

`contracts.inference` and `contracts.records` import without torch; `contracts.weights` and
`contracts.trainer` need it. This package must not import an adapter or the pipeline.
"""

from contracts.support.moved import install_finder

CONTRACT_VERSIONS = (1, 2)  # versions of the inference contract that this project's clients support
CONTRACT_VERSION = CONTRACT_VERSIONS[-1]  # the version that this project's servers implement

install_finder()
