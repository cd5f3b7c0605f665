"""The web console: static pages that the gateway serves, their sessions, and the JSON and events that they read."""
