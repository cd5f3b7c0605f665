"""The services of Afterimage, one folder each."""

import os

# By default torch's threads spin between operations and starve the other services of the process: on two busy cores a
# step took several times longer. torch reads the variable at its first import, so this line precedes all services.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
