"""`python -m services.gateway`: run the gateway alone in its own process."""

from shared.runtime.extras import missing_packages_named

if __name__ == "__main__":
    with missing_packages_named("gateway"):
        from services.gateway.service import GatewayService
        from shared.service.process import main

        main(GatewayService)
