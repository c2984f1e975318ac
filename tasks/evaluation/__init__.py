"""Measuring models on the test users, comparing them, and deciding which one serves."""
