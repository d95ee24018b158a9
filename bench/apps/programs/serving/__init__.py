"""Ensemble serving: a batch goes to all models, and their votes decide."""
