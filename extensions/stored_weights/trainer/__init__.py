"""The trainer's side: publishers that write versions into a store, and watch the servers that load them."""
