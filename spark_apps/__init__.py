"""Programs for spark-submit, which run the engine's copy and merge on a cluster."""
