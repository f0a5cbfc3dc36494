"""Where data goes: the destination protocol and the destinations that come with pgetl."""
