"""Decides which of the run's servers get the next weight version.

Used by the publishers and the reference updates on trainer rank 0. Must not know the weights, or how they
are sent.

How a server gets in. The launcher's events say which servers belong to the run (`servers`). Before each
version, `candidates` asks them whether they are ready. Servers of the last publication have longer to answer
than others, and a silent server is asked less and less often (`silent_servers`). A server that the actor has
pinned, or that is condemned, is not asked. Candidates are the ready servers with all capabilities that the
run needs. `strikes` chooses among them, and `weight_groups` forms a process group of the chosen ones, if the
transport needs one.

What counts against it. One member's failure breaks an update for all members of a group, so `blame` finds
the members that caused it. Each of them gets a strike, which keeps it out for some versions. Successes clear
strikes. If a member has left the run, no server gets a strike.

When it is out for good. `candidates` condemns a server that refuses permanently or lacks a capability. It
also condemns a server that fails update after update, is not ready in time, or has closed its port. The
launcher ends condemned servers, and replaces those of the second kind.

Who decides. The publisher asks `candidates` before each version, and reports failures to `candidates` and
`strikes`. Between publications, `stranded` detects that no server of the last one answers while another
server is ready. The version is then published again.
"""
