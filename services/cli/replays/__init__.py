"""`afterimage replay`: replay one trace with any cache policy, with the decisions of serving."""
