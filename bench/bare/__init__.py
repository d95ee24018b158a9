"""The same operations with plain blocking sockets that know everything beforehand, for comparison."""
