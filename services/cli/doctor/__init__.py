"""`afterimage doctor`: check a machine and its servers, and say what is wrong and what to do."""
