"""How large a pool should be, and whether it is worth it: from a configuration and from recorded traffic."""
