"""Ranks as threads of this process."""

import threading


def in_threads(size, work, limit=60.0):
    """What `work(rank)` returns in a thread for each rank; the error of the lowest rank is raised."""
    results, errors = [None] * size, {}

    def perform(rank):
        try:
            results[rank] = work(rank)
        except BaseException as error:
            errors[rank] = error

    threads = [threading.Thread(target=perform, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit)
    if errors:
        raise errors[min(errors)]
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    return results
