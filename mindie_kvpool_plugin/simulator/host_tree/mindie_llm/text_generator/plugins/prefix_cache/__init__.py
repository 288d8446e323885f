"""Reuse of KV that is already on the device."""
