"""One report model, several renderers."""
