"""A comparison for people: HTML page, Markdown table, terminal table, figures."""
