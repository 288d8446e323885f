"""What stands between the walks and a backend: the breaker, a pool that comes late, checksums."""
