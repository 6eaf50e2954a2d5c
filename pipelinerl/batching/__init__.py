"""What the preprocessor does: finished groups become the rows of a step.

Called by `pipelinerl.preprocessor`; the trainer's probe uses `sequences`. It is pure computation: it must not
know streams, servers or processes.
"""
