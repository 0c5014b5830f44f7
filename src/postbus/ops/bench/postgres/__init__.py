"""What is measured on PostgreSQL. A module here needs the driver to be imported."""
