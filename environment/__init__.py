"""Building and inspecting the project's own Python environment; standard library only."""
