"""Decides where a picture starts: from an embedding to a Plan (NIRVANA §5.3)."""
