"""The retriever service: choose where a request starts, from its embedding to a Plan (NIRVANA §5.3)."""
