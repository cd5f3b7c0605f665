"""One policy over one trace on real models, through an Afterimage of its own."""
