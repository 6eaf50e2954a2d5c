"""Converts messages to token ids, and sampled token ids to messages. No other code calls chat templates.

Used by the clients and by the launcher's checks. Must not know servers, domains or rollouts.
"""
