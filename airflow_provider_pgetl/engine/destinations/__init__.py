"""Destinations: the destination protocol, and the destinations that pgetl includes."""
