"""What other programs print, read into typed objects: text in, objects or one-line errors out."""
