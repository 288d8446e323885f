"""Pool backends behind one contract (``pools.base``)."""
