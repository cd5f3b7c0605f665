"""Train the bundled models on rendered scenes, and judge the images that they generate."""
