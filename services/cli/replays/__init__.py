"""`afterimage replay`: one trace, any policy, the decisions that serving would make."""
