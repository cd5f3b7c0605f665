"""The services of Afterimage, one folder each."""

import os

# torch's threads spin between operations by default, and the services of one process then starve each other: on two
# busy cores a step took several times longer. Read when torch is first imported, so it is set before any service is.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
