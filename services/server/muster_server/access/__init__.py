"""`muster access`: what the file of rights decides, explained."""
