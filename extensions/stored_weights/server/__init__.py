"""Weight channels: a server obtains the versions of a run from a store instead of a weight group.

`extensions.stored_weights.channels` makes them. `relay` fetches over HTTP in a thread of its own, `shared`
reads a directory of this machine, and `follower` pulls each newer version unasked. What a store is, is known
to `extensions.stored_weights.store` alone.
"""
