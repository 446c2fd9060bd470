"""A monitor that waits for descriptors is woken by its alarm, also by one that was rung before."""

import os
import threading
import time
from math import inf
from types import SimpleNamespace

from decentnode.launcher.monitoring.monitor import RunMonitor


def test_an_alarm_ends_a_wait_once():
    monitor = RunMonitor.__new__(RunMonitor)
    monitor._alarm, monitor._control = os.eventfd(0, os.EFD_NONBLOCK), None
    monitor.watchdog = SimpleNamespace(next_check=inf)
    monitor.wake()
    monitor.wait([], inf)
    threading.Timer(0.01, monitor.wake).start()
    monitor.wait([], inf)
    began = time.monotonic()
    monitor.wait([], 0.05)
    assert time.monotonic() - began >= 0.05
    os.close(monitor._alarm)
