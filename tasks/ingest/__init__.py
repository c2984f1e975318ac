"""Brings a user's own logs into the lake as daily partitions."""
