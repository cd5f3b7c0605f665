"""A session trace through several systems: plans, images, figures."""
