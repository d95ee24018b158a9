"""What tests and measurements of transports share: endpoints with a port of their own, and the conformance checks."""
