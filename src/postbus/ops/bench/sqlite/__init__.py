"""What is measured on SQLite: postbus, and the raw driver doing the least that the job needs."""
