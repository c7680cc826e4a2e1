"""What a release needs: checks of wheels, their bill of materials, the picture of the imports, and the time to the first word."""
