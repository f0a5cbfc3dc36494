"""What waits in the triggerer: the supervisor of the streaming worker, and waits for phases."""
