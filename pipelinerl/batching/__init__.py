"""The preprocessor's computation, from finished groups to the rows of a step.

Called by `pipelinerl.preprocessor`; the trainer's probe uses `sequences`. Pure: must not know streams,
servers or processes.
"""
