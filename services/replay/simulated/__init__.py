"""Replay one policy over one trace without a denoiser: in order, or in virtual time on simulated workers."""
