"""Foundations: errors, units, random streams, checks, and file input and output."""
