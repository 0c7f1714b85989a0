"""OpenRS on the CPU: recorded and simulated judges, no language model."""
