"""The protocol's machines on a virtual network with a virtual clock: every run follows from its arguments alone."""
