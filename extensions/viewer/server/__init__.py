"""The viewer's server: the application, its access control, and live events."""
