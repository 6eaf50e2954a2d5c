"""The gateway: queues completions, gives them to volunteers, and answers with what passes the audit."""
