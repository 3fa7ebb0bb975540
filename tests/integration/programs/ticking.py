"""A process that declares one schedule, has the loops of a client, and says when it is ready."""

import time

from saying import CONFIG, heard, listen, say, say_what_is_logged

import lanelog

listen()
say_what_is_logged()
client = lanelog.connect(CONFIG["url"], pool_size=2)
client.schedule("tick", CONFIG["expression"], "t", "k", b"x", timezone="Europe/Berlin")
say("ready", clock=time.time())
heard("stop").wait()
say("closed", closed=client.close())
