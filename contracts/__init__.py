"""The two contracts, and the records that cross a process boundary.

`contracts.inference` and `contracts.records` import without torch; `contracts.weights` and
`contracts.trainer` need it. Nothing here knows an adapter or the pipeline.
"""

from contracts.support.moved import answer_imports

CONTRACT_VERSIONS = (1, 2)  # versions of the inference contract that the clients here support
CONTRACT_VERSION = CONTRACT_VERSIONS[-1]  # the version that the servers here implement

answer_imports()
