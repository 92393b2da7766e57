"""Mirrors the folders of the product.

conftest.py holds fixtures for all tests, and support/ the servers and processes behind them.
"""
