"""What outlives a launcher or a process: resume, run state, checkpoint retention, restarts."""
