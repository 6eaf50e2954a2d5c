"""Decides which of the run's servers get the next weight version.

Used by the publishers and the reference updates on trainer rank 0. Must not know the weights, or how they
are sent.

How a server gets in. The launcher's events say which servers belong to the run (`servers`). Before each
version they are asked whether they are ready (`candidates`). Those in the last publication have longer to
answer than others, and a silent one is asked less and less often (`silent_servers`). A server that the actor
has pinned, or that is condemned, is not considered. The candidates are the ready ones with all capabilities
that the run needs. Of these, `strikes` chooses. `weight_groups` forms a group of them, unless the transport
needs none.

What counts against it. One member's failure breaks an update for all members of a group, so `blame` finds
out who caused it. Each server to blame gets a strike, which keeps it out for some versions; successes clear
its strikes. If a member has left the run, no server is blamed.

When it is out for good. `candidates` condemns a server that refuses permanently, or lacks a capability. It
also condemns one that fails update after update, is not ready in time, or has closed its port. The launcher
reads that, and replaces a server of the second kind.

Who decides. `candidates` decides who takes part, with the choice of `strikes`. The publisher asks it before
each version, and reports the outcome to both. Between publications, `stranded` tells when the servers of the
last one are gone while another is ready: then the version is published again.
"""
