"""Who may do what: principals, ACLs, listeners, authentication. See docs/security.md."""
