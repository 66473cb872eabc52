"""Offline choice of the fastest exchange on a network: ranking, margins, and sensitivity.

================= =============================================================================================
"""
