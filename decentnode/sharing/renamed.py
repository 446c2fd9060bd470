"""Names of version 0.1, for the messages that older plug-ins get; CHANGELOG.md has the same table."""

REQUIREMENTS = {
    name: f"requirements.{name.removeprefix('needs_')}"
    for name in (
        "needs_static_graph", "needs_undirected_graph", "needs_complete_graph", "needs_tree", "needs_server",
        "needs_co_senders", "needs_levels", "needs_plain_sgd", "needs_float32", "needs_local_loss",
    )
}  # fmt: skip
PROMISES = {
    name: f"promises.{name}"
    for name in (
        "tolerates_loss", "protects", "mean", "carries_errors", "sends_one_payload", "sends",
        "takes_correction", "overlaps", "phases", "wire",
    )
}  # fmt: skip

HOOKS = {
    **REQUIREMENTS, "when_changing": "requirements.for_changing_graphs",
    **PROMISES, "takes_back": "promises.allows_rejoin", "mean": "promises.about_mean",
    "introduction": "handshake", "meet": "receive_handshakes", "fit": "bind, whose setup has the graph",
}  # fmt: skip
"""Former hooks that a plug-in may define, and their places now."""

ASYNCHRONOUS_HOOKS = {"_use": "use", "_own": "fill_for", "repeats": "resends", "repeated": "answer_repeated"}
SERVER_HOOKS = {"_signal": "signal", "_step": "step"}
ROBUST_HOOKS = {"coefficients": "weigh", "_signals": "models_to_mix"}

ATTRIBUTES = {
    **HOOKS,
    **{name: f"setup.{name}" for name in ("layout", "num_nodes", "seed", "samples", "local_loss", "watched")},
    "_encoded": "encode", "_decoded": "decode", "_read": "decode_each", "_mix_finite": "weighted_mix",
    "_refused": "refuse", "_flaw_of": "flaw_of", "_posts": "posts", "_live": "live_targets",
    "_drawn": "draw_targets", "_add_up": "add_up",
}  # fmt: skip
"""Former attributes that a plug-in may use, and their places now."""
