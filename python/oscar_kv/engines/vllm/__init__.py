"""The plugin for vLLM 0.32 and 0.33."""
