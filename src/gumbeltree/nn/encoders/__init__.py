"""Encoders: word vectors -> sentence vector and tree. Built from their settings."""
