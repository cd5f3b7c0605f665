"""SQLite and PostgreSQL behind one narrow waist: a function over a connection, read or written."""
