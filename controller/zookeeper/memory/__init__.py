"""ZooKeeper in memory: the same sessions, watches, ACLs and multis as the real server's, driven by a clock that is
given. `server` is the ensemble, `connection` what a client holds, `database` decides, and `tree`, `watches`, `acl` and
`session` are its values. The contract's tests hold it against a real server."""
