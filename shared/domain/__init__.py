"""The nouns of Afterimage and the rules about them: plain values that need no server, no loop and no torch."""
