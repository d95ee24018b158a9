"""What this host is to others and to itself: its addresses, and how much memory its processes may use."""
