"""The plugin for vLLM 0.33."""
