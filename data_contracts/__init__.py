"""What data must look like before anything is trained on it."""
