"""A ZooKeeper server in Python: the in-memory znode tree behind ZooKeeper's own protocol on TCP.

`server` has the sessions, the faults and the thread that serves; `connection` the framing; `requests` what each request
does; `watches` the watches of all modes; `wire` the encoding; `identity` the access rules; `words` the four-letter
words. docs/zookeeper-server.md is the guide.
"""
