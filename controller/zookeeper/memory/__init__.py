"""ZooKeeper in memory: the same sessions, watches, ACLs and multis as the real server's, driven by a clock that is
given. `server` has the ensemble and its clients' connections, `database` the znodes, watches and access lists,
`session` the sessions. The contract's tests hold it against a real server.
"""
