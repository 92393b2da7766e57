"""What tests stand on: real servers and real processes, and a way to wait for a named moment."""
