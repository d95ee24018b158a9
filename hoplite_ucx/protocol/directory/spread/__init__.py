"""How one object reaches all nodes that want it: the tree of each version, and who sends to whom."""
