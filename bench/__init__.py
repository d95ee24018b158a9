"""Measurements: an emulated cluster, microbenchmarks, the same operations on other systems, applications and plots.

Every figure it reports states the settings and the theoretical limit it was measured against.
"""
