"""Heads: sentence encodings -> predictions. Built from their settings and the vector width."""
