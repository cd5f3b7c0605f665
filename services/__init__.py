"""The services of Afterimage, one folder each."""
