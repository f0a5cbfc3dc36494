"""What the engine uses of its process: threads, clocks, memory, private folders, failpoints."""
