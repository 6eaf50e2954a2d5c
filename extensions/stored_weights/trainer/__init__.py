"""The trainer's side: publishers that write versions to a store, and watch the servers that load them."""
