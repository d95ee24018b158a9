"""What the programs of both systems share: models, data, environments, and where actors run."""
