"""Destinations: the destination protocol, and the destinations that pgetl includes.

`BUILT_IN` names the declarations of their types (`config.destination_types`). Other packages register theirs by entry
points instead.
"""

BUILT_IN = {
    "memory": f"{__name__}.built_in:MEMORY",
    "postgres": f"{__name__}.built_in:POSTGRES",
    "delta": f"{__name__}.delta.options:DELTA",
}
