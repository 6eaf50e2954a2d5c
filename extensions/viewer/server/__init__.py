"""The viewer's server: the application, who may ask it, and the runs that it has open."""
