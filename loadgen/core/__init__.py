"""Pure decisions: values in, values out. No socket, clock, os, random module state or thread."""
