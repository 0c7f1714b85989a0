"""What the viewer's answers hold, read from run folders: typed records, no HTTP."""
