"""How one object is made of others: which sources go in, the slots that combine them, and the hosts that run the slots.

`reduction` takes one from its request to its seal. `laying` lays the tree, `hosts` chooses who runs a slot, `binding`
asks them, `adoption` goes on after a restart. What is known of a reduction is in `records`, as plain data.
"""
