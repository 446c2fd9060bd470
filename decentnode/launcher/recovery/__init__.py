"""What outlives a launcher or a process: resume, verify, run state, checkpoint retention, restarts."""
