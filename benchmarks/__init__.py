"""One script per claim about speed or memory; each prints one JSON object as its last line."""
