"""The same operations with blocking sockets alone, which know everything beforehand: to compare with."""
