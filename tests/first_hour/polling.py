"""Asking once, and a directory that does not answer."""
