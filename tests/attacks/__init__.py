"""What a hostile caller tries, one scenario each; every one succeeded before its mend."""
