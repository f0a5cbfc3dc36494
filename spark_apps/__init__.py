"""Thin programs for spark-submit; they run the engine's copy and merge on a cluster."""
