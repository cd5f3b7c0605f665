"""SQLite and PostgreSQL behind one narrow interface: a function over a connection, run as a read or a write."""
