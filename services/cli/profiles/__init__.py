"""`afterimage profile`: measure the quality of starts from other images, and write the similarity → K tables."""
