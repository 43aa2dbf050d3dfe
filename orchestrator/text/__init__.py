"""What is done to texts: secrets and paths taken out, places filled in, words ranked, pages made readable."""
