"""From the spool to a sink: each sink in a process of its own, which can be killed and goes on where it was."""
