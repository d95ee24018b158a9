"""Numbers for operators: counted as plain integers around the machines, and served as Prometheus text on request."""
