"""Who waits for descriptors is woken by an alarm, also one that was rung before."""

import threading

from decentnode.core.polling import ready
from decentnode.launcher.monitoring.alarm import Alarm


def test_an_alarm_wakes_whoever_waits_until_it_is_cleared():
    alarm = Alarm()
    assert ready([alarm.fd], seconds=0.0) == []
    alarm.clear()
    threading.Timer(0.01, alarm.ring).start()
    assert ready([alarm.fd], seconds=float("inf")) == [alarm.fd]
    alarm.ring()
    alarm.clear()
    assert ready([alarm.fd], seconds=0.0) == []
