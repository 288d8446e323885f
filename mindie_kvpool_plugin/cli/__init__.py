"""The ``mindie-kvpool`` command."""
