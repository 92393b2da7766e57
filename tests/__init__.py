"""Mirrors the tree; see conftest.py for the fixtures and support/ for what they stand on."""
