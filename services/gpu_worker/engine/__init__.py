"""The batch on the device: choose its rows, run one denoising step, apply the results."""
