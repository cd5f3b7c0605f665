"""Each port's behaviour, stated once and run over every adapter."""
