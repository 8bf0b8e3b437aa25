"""Text: from strings to ids."""
