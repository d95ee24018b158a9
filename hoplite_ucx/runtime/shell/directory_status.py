"""How a process with the token asks the directory for its status: one frame, in a session that never joins."""

STATUS = b"\xc1status"
"""No message of the protocol begins with this byte."""
