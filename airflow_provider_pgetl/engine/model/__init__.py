"""Plain data and pure rules: tables, positions, phases, errors, findings, reports."""
