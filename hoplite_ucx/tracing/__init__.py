"""Traces: what every machine did and waited for, on one clock, as Chrome and Perfetto show it."""
