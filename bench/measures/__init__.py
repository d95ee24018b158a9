"""What is measured: a module for each `hoplite bench` command, or for several that share their rounds."""
