"""What a process shows others, and asks of them.

Begin with `trust`, which opens channels and servers with all of it. `tls` has the certificates, and `expiry`
says in time that they end; `inside` knows calls of the cluster's own processes by a token, or by a name among
the `peers`. Who calls from outside, and what it may do, are the rooms `identity` and `access`.
"""
