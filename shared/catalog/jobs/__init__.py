"""Job rows: accepted, claimed, moved, finished, swept and expired."""
