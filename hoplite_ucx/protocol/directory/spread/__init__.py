"""How one object reaches everybody who wants it: the tree of each version, and who sends to whom."""
