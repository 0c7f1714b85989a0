"""The viewer's web server: loopback only, a token, GET only, JSON and one page."""
