"""Real kind clusters on a machine that can pull no image: everything is built from modules and Debian packages."""
