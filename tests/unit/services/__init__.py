"""Processes beside the engine."""
