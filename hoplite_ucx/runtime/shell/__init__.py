"""What agent and directory have in common as processes around a machine: a clock, logs of refused connections."""
