"""Before any run: what is declared and what is there are checked and brought together, or refused."""
