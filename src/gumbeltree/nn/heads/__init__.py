"""Heads: encodings of sentences -> what is asked about them. Made from settings and a width."""
