"""Tables of actions, played with profiled times: bubbles and memory."""
