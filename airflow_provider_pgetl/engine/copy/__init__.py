"""The copy of one sync group: admission, attempt, claims, ranges, tables."""
