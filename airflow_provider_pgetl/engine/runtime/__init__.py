"""What the engine has of its process: threads, clocks, memory, private folders, failpoints."""
