"""Choosing offline: which exchange is fastest on a network, by how much, and what would change that.

================= =============================================================================================
"""
