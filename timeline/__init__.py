"""The timeline format: recording, reading, and the tables in between."""
