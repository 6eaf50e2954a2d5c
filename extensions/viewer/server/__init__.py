"""The viewer's HTTP server: application, authorization and event streams."""
