"""The preprocessor's computation: it turns finished groups into the rows of a step.

Called by `pipelinerl.preprocessor`; the trainer's probe uses `sequences`. It is pure computation and must not
know streams, servers or processes.
"""
