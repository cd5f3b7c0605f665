"""How commands print: tables that fit the terminal, plans and jobs in words, help texts."""
