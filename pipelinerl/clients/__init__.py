"""HTTP clients of inference servers: the pipeline's side of the inference contract.

Called by the actor, trainer and preprocessor, and by commands that sample without a run. Must not know which
process calls, rewards, or the weight transport.
"""
