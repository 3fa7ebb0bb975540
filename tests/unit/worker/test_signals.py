import sys

from support.scripts import ran

PROGRAM = """
import signal
import sys

from lanelog._client.signals import ending_by_signal


def interrupted(line):
    met = 0

    def trace(frame, event, _argument):
        nonlocal met
        if event == "line":
            met += 1
            if met == line:
                signal.raise_signal(signal.SIGTERM)
        return trace

    with ending_by_signal(lambda: None) as ending:
        sys.settrace(trace)
        ended = ending.wait(0.01)
        sys.settrace(None)
        sent = met >= line
        assert (ended or ending.wait(0.0)) == sent, line
    return sent


line = 1
while interrupted(line):
    line += 1
print(line)
"""


def test_a_signal_ends_the_wait_at_whatever_line_it_meets_the_main_thread() -> None:
    """A handler must take no lock that the interrupted line may hold: the process would never end."""
    done = ran(sys.executable, "-c", PROGRAM)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > len(("get", "return", "except"))
