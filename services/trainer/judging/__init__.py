"""Says what the bundled models' images show: templates, a classifier, and how sure both must be."""
