"""The copy: tables of one group, from one snapshot, into the destination, published one by one."""
