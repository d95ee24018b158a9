"""How one object is made of others: which sources go in, the slots that combine them, and the hosts that run the slots.

`reduction` is one reduction from its request to its seal. `slots` lays the tree, `hosts` chooses who runs a slot,
`binding` asks them, `stripes` makes a result in pieces for everybody, `adoption` goes on after a restart.
"""
