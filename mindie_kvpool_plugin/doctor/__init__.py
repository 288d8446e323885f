"""Live examination of a deployment: a table of small probes, each with a verdict and a fix."""
