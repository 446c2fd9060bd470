"""One launcher per machine: it starts the host processes and watches them."""
