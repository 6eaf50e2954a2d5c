"""Weight channels: a server obtains the versions of a run from a store instead of a weight group.

`extensions.stored_weights.channels` creates them. `relay` fetches over HTTP in a thread, `shared` reads a
local directory, and `follower` pulls each newer version without a request. `extensions.stored_weights.store`
implements the store.
"""
