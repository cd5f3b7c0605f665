"""The output of commands: tables that fit the terminal, plans and jobs in words, help texts."""
