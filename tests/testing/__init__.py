"""Servers for the demo and the tests."""
