"""Measurements: an emulated cluster, live operations compared with bare sockets on the same hosts, and the demo.

Every figure it reports states the settings and the theoretical limit it was measured against.
"""
