"""Answers by raw IDs from a model bundle, here and as an MLflow model."""
