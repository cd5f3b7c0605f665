"""`python -m services.gateway`: the gateway alone."""

from services.gateway.service import GatewayService
from shared.service import main

if __name__ == "__main__":
    main(GatewayService)
