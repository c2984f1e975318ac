"""When the steps run and in which order."""
