"""Processes beside the engine: the master of a pool, and stores that own its memory."""
