"""The stores: phases, positions, schemas and leases, in memory or in Postgres."""
