"""The cache of a layer in three tiers: sequences of its own, slots of an engine, blocks that requests share."""
