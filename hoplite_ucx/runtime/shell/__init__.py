"""What agent and directory share as processes around a machine: a clock, logs of refused connections, early links."""
