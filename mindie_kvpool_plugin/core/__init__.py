"""What happens to blocks; no host, no torch, no backend library."""
