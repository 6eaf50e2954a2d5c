"""Publishers of weights, on trainer rank 0: their interface, and the one that broadcasts.

Built by the transport that the configuration names (`pipelinerl.weight_transport`). Must not know how weights
are trained, or how a server loads them.
"""
