"""Counting, vocabularies and examples for IDs with a long tail."""
