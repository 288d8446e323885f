"""Records that travel between scheduler, plugins and model."""
