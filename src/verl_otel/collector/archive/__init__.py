"""What the commands ask of the archive, and where its files are. Reading only; the sink ``archive`` writes."""
