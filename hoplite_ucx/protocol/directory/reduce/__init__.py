"""How one object is made of others: which sources go in, the slots that combine them, and the hosts that run the slots.

`reduction` takes one from its request to its seal. `tree_builder` builds the tree, `hosts` chooses the node that runs a
slot, `binding` asks the nodes, `adoption` continues after a restart. `records` has the state of a reduction, as plain
data.
"""
