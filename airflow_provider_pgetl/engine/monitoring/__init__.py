"""Reading the state of a pipeline from outside: without a store, in an event loop or for display."""
