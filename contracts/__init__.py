"""The two contracts, and the records that cross a process boundary.

`contracts.inference` and `contracts.records` import without torch; `contracts.weights` and
`contracts.trainer` need it. Nothing here knows an adapter or the pipeline.
"""

CONTRACT_VERSION = 1
