"""What tests and measurements of transports share: endpoints with their own port, and the conformance checks."""
