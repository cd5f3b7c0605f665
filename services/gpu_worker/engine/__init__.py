"""The batch on the device: decide which rows ride, run one denoising step, fold the results back."""
