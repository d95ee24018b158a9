"""Facts about this host: its addresses, and how much memory its processes may use."""
