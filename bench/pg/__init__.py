"""What the workloads on PostgreSQL share: the server, the raw driver, the peers."""
