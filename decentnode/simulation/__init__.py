"""Virtual time: a clock and an event loop that jump from event to event, and models of networks."""
