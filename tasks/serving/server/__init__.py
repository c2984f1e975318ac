"""The HTTP server in front of the champion."""
