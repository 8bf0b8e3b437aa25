"""Convert text to word ids."""
