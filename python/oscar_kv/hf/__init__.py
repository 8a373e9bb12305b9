"""The cache in transformers."""
