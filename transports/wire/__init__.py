"""How two processes reach and trust each other: addresses, the handshake, TLS, and sessions that carry messages."""
