"""The gateway service, the public API: admit requests, choose their lanes, and send progress and results to waiting
clients."""
