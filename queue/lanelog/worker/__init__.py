"""`lanelog worker`: processes that run the handlers of a module, under one supervisor.

Owns the life of these processes. The supervisor connects to no database and imports none of the application. Each
process is a fresh interpreter that imports the module and calls `client.run()`. It is joined to its supervisor by a
socket: it reports its health there, and when the other end is gone, it drains and ends.

What is killed:

* A process: its lanes go to others as after any crash, and the supervisor starts another one.
* A process that hangs: the supervisor kills it. It says nothing, or says that a loop of it stands still.
* The supervisor: the system closes its ends of the sockets, and every process drains as at SIGTERM.
* All of them at once: nothing is left that runs, and the leases expire.
"""
