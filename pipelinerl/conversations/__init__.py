"""Converts messages to token ids, and sampled token ids to messages. No other code calls chat templates.

Called by the clients and the launcher's checks. Must not know servers, domains or rollouts.
"""
