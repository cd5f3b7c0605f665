"""`afterimage profile`: measures what starting from another image costs, and writes the similarity → K table."""
