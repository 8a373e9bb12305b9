"""The parts of scripts/reproduce."""
