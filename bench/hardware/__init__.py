"""`ci/hardware`: links between two real hosts, checked and measured, with a report of what they really used.

It has not run on InfiniBand, RoCE or several rails yet; over UCX's TCP between two emulated hosts it is tested.
"""
