"""What the preprocessor does: finished groups become the rows of a step.

Called by `pipelinerl.preprocessor`. It is pure computation: it must not know streams, servers or processes.
"""
