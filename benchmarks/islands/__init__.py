"""What islands learn together, what they send, and what their rounds take on a slow link."""
