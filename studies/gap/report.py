"""Tables and a picture of the grid study's CSV files."""
def write(file): return str(file)
