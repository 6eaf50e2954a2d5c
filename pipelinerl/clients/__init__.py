"""The pipeline's side of the inference contract: clients that talk to servers over HTTP.

Called by the rollouts, the training and the batching processes. Must not know who asks, what a rollout is
worth, or how weights travel.
"""
