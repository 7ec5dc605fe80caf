"""Ours against torch's own on a GPU; see __main__.py."""
