"""Small domains that show how one is written: a conversation of several turns, and a tool."""
