"""Operators that run steps as processes."""
