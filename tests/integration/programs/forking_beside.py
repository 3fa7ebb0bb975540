"""A process that forks while another of its threads waits for an answer on a connection of the pool."""

import os
import threading

from saying import CONFIG, heard, listen, say, say_what_is_logged

import lanelog

listen()
say_what_is_logged()
client = lanelog.connect(CONFIG["url"], driver=CONFIG["driver"], pool_size=2)
client.publish("t", "k", b"x")


def wait() -> None:
    with client.transaction() as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT GET_LOCK('held by the test', 60)")
        client.publish("t", "k", b"of the thread", connection=connection)


waiting = threading.Thread(target=wait)
waiting.start()
heard("fork").wait()
child = os.fork()
if child == 0:
    receipts = [client.publish("t", "child", {"n": n}).offset for n in range(3)]
    say("child", receipts=receipts, closed=client.close())
    os._exit(0)
say("joined", status=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
waiting.join()
say("parent", offset=client.publish("t", "k", b"y").offset, closed=client.close())
