"""Serving engines: what they share, and a folder for each."""
