"""The ways in which weights reach the servers: `weights.transport` chooses a publisher.

Built by `publishers.new_publisher` on trainer rank 0. Must not know how weights are trained, or how a server
loads them.
"""
