"""Encoders: word vectors -> sentence vector and tree. Made from their settings."""
