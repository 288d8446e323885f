"""How a worker process hears from the daemon."""
