"""What an operator runs once on the machine: the doctor's probes, then device, bandwidth, nodes and two prompts."""
