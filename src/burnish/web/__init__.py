"""Local HTTP servers of `burnish view` and `burnish serve-reward`: request checks, limits."""
