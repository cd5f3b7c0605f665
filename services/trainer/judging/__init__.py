"""Judge the images of the bundled models by templates and a classifier, with a confidence threshold for each."""
