"""The pipeline's side of the inference contract: clients that talk to servers over HTTP.

Called by the actor, the trainer and the preprocessor, and by the commands that sample without a run. Must not
know which process calls, what a rollout is worth, or how weights travel.
"""
