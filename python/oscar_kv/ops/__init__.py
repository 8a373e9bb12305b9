"""The operators on plain tensors: their declaration, the torch reference, the CUDA library and what it supports."""
