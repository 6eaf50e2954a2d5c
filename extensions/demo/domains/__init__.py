"""Small example domains: a conversation of several turns, and a tool."""
