"""A ZooKeeper server in Python: the in-memory znode tree behind ZooKeeper's own protocol.

`core` has the sessions, the timers and the faults, without a thread or a socket; `server` serves a core over TCP, and
`controller.zookeeper.fake_kazoo` to kazoo clients of the same process. `connection` has the framing; `requests` what
each request does; `watches` the watches of all modes; `wire` the encoding; `identity` the access rules; `words` the
four-letter words. `storage` keeps the data on disk: `log` has the write-ahead log, `transactions` what is in it,
`recovery` how it is read, `files` the calls that make it durable. docs/zookeeper-server.md is the guide.
"""
