"""Files of others, read with care: JSON, safetensors, fingerprints, and the errors that name them."""
