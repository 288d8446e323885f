"""The worker's ear: threads that wait for the daemon's messages."""
