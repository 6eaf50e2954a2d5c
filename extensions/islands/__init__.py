"""DiLoCo: the trainers of several runs (islands) merge their progress every few updates.

A merge is a round. The anchor is the weights after the last round, and an island's drift is the anchor minus
its weights. The outer optimizer moves the anchor by the drifts' mean. The lineage hashes an anchor's history.
Plugs into a run as its trainer (`trainer=diloco`), around another one, which is a flat float32 vector here.
"""
